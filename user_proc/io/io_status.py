"""The IO_STATUS_BLOCK of the user side.

Spec: WDK: IO_STATUS_BLOCK.
"""

from shared.nt_status import STATUS_PENDING, status_name


class IoStatusBlock:
    """What a request leaves behind: written by its completion, untouched where NT leaves it so."""

    __slots__ = ("information", "status")

    def __init__(self, status: int = STATUS_PENDING, information: int = 0) -> None:
        self.status = status
        self.information = information

    def __repr__(self) -> str:
        return f"IoStatusBlock({status_name(self.status)}, information={self.information})"
