"""The fault of a user address that cannot be touched (WDK: STATUS_ACCESS_VIOLATION)."""

from kernel_proc.scheduling.raised_status import RaisedStatus
from shared.nt_status import STATUS_ACCESS_VIOLATION


class AccessViolation(RaisedStatus):
    """A touch of `address` faulted; drivers catch it, the I/O manager turns it into a status."""

    def __init__(self, address: int, is_write: bool, reason: str = "") -> None:
        self.address = address
        self.is_write = is_write
        access = "write to" if is_write else "read of"
        super().__init__(
            STATUS_ACCESS_VIOLATION, f"{access} {address:#x}{': ' + reason if reason else ''}"
        )
