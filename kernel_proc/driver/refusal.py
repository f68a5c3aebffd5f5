"""How a verb says no: errno, reason, and what they are about.

Rules: raised by verb handlers and what they call; the dispatch routine turns it into the output.
Nothing may be left behind by who raises it.
"""

from shared.verb_reasons import VerbReason


class VerbRefused(Exception):
    """A verb is refused; `object` and `detail` mean what the reason's comment says."""

    def __init__(self, errno: int, reason: VerbReason, object: int = 0, detail: int = 0) -> None:  # noqa: A002
        self.errno = errno
        self.reason = reason
        self.object = object
        self.detail = detail
        super().__init__(f"errno {errno}, {reason.name} (object {object:#x}, detail {detail:#x})")
