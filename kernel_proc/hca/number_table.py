"""Tables of hardware-owned objects, by index; a number carries a generation above its index."""

from typing import Final, Generic, Protocol, TypeVar

from kernel_proc.hca.command import bad_index, bad_resource_state

_NUMBER_END: Final = 1 << 24


class Numbered(Protocol):
    """An object that knows its full number."""

    number: int


_Kind = TypeVar("_Kind", bound=Numbered)


class NumberTable(Generic[_Kind]):
    """Objects at `number mod size`; the first `reserved` indices are the firmware's."""

    def __init__(self, reserved: int) -> None:
        self._reserved: Final = reserved
        self._entries: list[_Kind | None] = []
        self._mask = 0

    def configure(self, log_size: int) -> None:
        """Take the size INIT_HCA gave; the table is empty."""
        self._entries = [None] * (1 << log_size)
        self._mask = (1 << log_size) - 1

    def index_of(self, number: int) -> int:
        """Return the index of a number, or refuse one that cannot be."""
        index = number & self._mask
        if number >= _NUMBER_END or index < self._reserved or not self._entries:
            raise bad_index()
        return index

    def find(self, number: int) -> _Kind | None:
        """Return the object of this very number."""
        if not self._entries:
            return None
        entry = self._entries[number & self._mask]
        return entry if entry is not None and entry.number == number else None

    def is_taken(self, index: int) -> bool:
        """Say whether the hardware owns an object of this index, whatever its generation."""
        return self._entries[index] is not None

    def require(self, number: int) -> _Kind:
        """Return the object for a command: BAD_INDEX if it cannot be, BAD_RES_STATE if not."""
        entry = self._entries[self.index_of(number)]
        if entry is None:
            raise bad_resource_state()
        if entry.number != number:
            raise bad_index()
        return entry

    def require_free(self, number: int) -> int:
        """Return the index of a number whose entry software owns."""
        index = self.index_of(number)
        if self._entries[index] is not None:
            raise bad_resource_state()
        return index

    def insert(self, entry: _Kind) -> None:
        """Give an entry to the hardware."""
        self._entries[entry.number & self._mask] = entry

    def remove(self, entry: _Kind) -> None:
        """Give an entry back to software."""
        self._entries[entry.number & self._mask] = None

    def all(self) -> list[_Kind]:
        """Return every object."""
        return list(filter(None, self._entries))  # no object is false, and the table is large
