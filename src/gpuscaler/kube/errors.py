"""What can go wrong between us and an API server."""


class Unreachable(Exception):  # noqa: N818 - it names the state, as the API's own reasons do
    """No answer came: nothing listens, the connection broke, or time ran out. Whether a write took effect is not known."""
