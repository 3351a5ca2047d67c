"""``gpuscaler doctor --send-test-message``: whether a message in the queue of notices arrives at the controller."""
