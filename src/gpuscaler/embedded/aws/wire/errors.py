"""What AWS answers where it does not do what it was asked."""


class AwsError(Exception):
    """A refusal by its ``code`` and HTTP ``status``; ``retry_after`` seconds are said in a header where above 0."""

    def __init__(self, code: str, message: str, *, status: int = 400, retry_after: float = 0.0) -> None:
        super().__init__(f"{code}: {message}")
        self.code, self.message, self.status, self.retry_after = code, message, status, retry_after


class BrokenError(Exception):
    """The connection breaks in place of an answer."""


def invalid(message: str) -> AwsError:
    """What EC2 Auto Scaling says to values that it does not take."""
    return AwsError("ValidationError", message)


def no_group(name: str) -> AwsError:
    return invalid(f"AutoScalingGroup name not found - AutoScalingGroup {name} not found")
