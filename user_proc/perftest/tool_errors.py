"""How a tool fails: each is one sentence on standard error."""

from user_proc.errors import SofthcaError


class ToolFailed(SofthcaError):
    """The run could not be done, or its data are wrong; exit code 1."""


class PeerGone(ToolFailed):
    """The other side has ended; `reason` is what it said last, empty if nothing."""

    def __init__(self, reason: str = "") -> None:
        said = f": {reason}" if reason else " before the run was over"
        super().__init__(f"the other side has ended{said}")
        self.reason = reason


class WrongOptions(SofthcaError):
    """An option that does not exist, is not supported, or has a value that cannot be; code 2."""
