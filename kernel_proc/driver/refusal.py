"""How a verb says no: errno, reason, and what they are about.

Rules: raised by verb handlers and what they call; the dispatch routine turns it into the output.
Nothing may be left behind by who raises it.
"""

from errno import EBUSY

from shared.verb_reasons import VerbReason


class VerbRefused(Exception):
    """A verb is refused; `object` and `detail` mean what the reason's comment says."""

    def __init__(self, errno: int, reason: VerbReason, object: int = 0, detail: int = 0) -> None:  # noqa: A002
        self.errno = errno
        self.reason = reason
        self.object = object
        self.detail = detail
        super().__init__(f"errno {errno}, {reason.name} (object {object:#x}, detail {detail:#x})")

    @property
    def unanswered(self) -> bool:
        """Tell whether a command was posted and never answered: the HCA may carry it out yet.

        One that the HCA did not take (EAGAIN) has not happened.
        """
        return self.reason is VerbReason.COMMAND_TIMEOUT and self.errno == EBUSY

    def is_status(self, opcode: int, status: int) -> bool:
        """Tell whether the HCA refused this command with this status."""
        return self.reason is VerbReason.COMMAND_FAILED and self.detail == opcode << 8 | status
