"""The machines of an account, and AWS's announcements about them."""
