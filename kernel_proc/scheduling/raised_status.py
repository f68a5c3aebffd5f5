"""An NTSTATUS raised as an exception inside the kernel (WDK: ExRaiseStatus)."""

from shared.nt_status import status_name


class RaisedStatus(Exception):
    """Carry `status` up to the routine that turns it into a return value."""

    def __init__(self, status: int, detail: str = "") -> None:
        self.status = status
        super().__init__(f"{status_name(status)}{': ' + detail if detail else ''}")
