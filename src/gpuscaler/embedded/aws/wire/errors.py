"""AWS's error answers."""


class AwsError(Exception):
    """A refusal with its ``code`` and HTTP ``status``; ``retry_after`` is sent in a header if above 0."""

    def __init__(self, code: str, message: str, *, status: int = 400, retry_after: float = 0.0) -> None:
        super().__init__(f"{code}: {message}")
        self.code, self.message, self.status, self.retry_after = code, message, status, retry_after


class BrokenError(Exception):
    """The connection breaks instead of an answer."""


def invalid(message: str) -> AwsError:
    """EC2 Auto Scaling's error for invalid values."""
    return AwsError("ValidationError", message)


def no_group(name: str) -> AwsError:
    return invalid(f"AutoScalingGroup name not found - AutoScalingGroup {name} not found")
