"""Whether running pods can move elsewhere: in bulk where their rules allow it, one at a time with every filter where they do not."""
