"""An amount of memory that may be handed out, and how much of it is."""

from typing import Any


class MemoryQuota:
    """Count bytes against a limit; one per process and one for the whole kernel."""

    __slots__ = ("limit", "used")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0

    def charge(self, length: int) -> bool:
        """Take `length` bytes; False, and nothing taken, if that passes the limit."""
        if length > self.limit - self.used:
            return False
        self.used += length
        return True

    def give_back(self, length: int) -> None:
        """Return bytes taken before."""
        self.used -= length

    def inspect(self) -> dict[str, Any]:
        """Return limit and use."""
        return {"limit": self.limit, "used": self.used}
