"""The machines of an account, and what AWS announces of them."""
