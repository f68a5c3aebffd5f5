"""Memory that a hostile request may name: what a kernel wrongly stored beyond it would fault."""

import ctypes
import mmap

PAGE = 4096
PAGES = 16
_NONE, _READ_WRITE = 0, 3
_libc = ctypes.CDLL(None, use_errno=True)


class Sandbox:
    """Some pages between two that nobody may touch; the last page is there to be read alone."""

    def __init__(self) -> None:
        self._mapping = mmap.mmap(-1, (PAGES + 3) * PAGE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._first = ctypes.addressof(ctypes.c_char.from_buffer(self._mapping))
        self._protect(0, 1, _NONE)
        self._protect(PAGES + 1, 1, mmap.PROT_READ)
        self._protect(PAGES + 2, 1, _NONE)

    def _protect(self, page: int, count: int, access: int) -> None:
        address = ctypes.c_void_p(self._first + page * PAGE)
        assert _libc.mprotect(address, ctypes.c_size_t(count * PAGE), access) == 0

    @property
    def start(self) -> int:
        """The first byte that may be written."""
        return self._first + PAGE

    @property
    def end(self) -> int:
        """Behind the last byte that may be written; behind the page there, nothing is."""
        return self.start + PAGES * PAGE

    def addresses(self) -> dict[str, int]:
        """Places where requests go wrong, by name."""
        return {
            "start": self.start, "odd": self.start + 1, "last": self.end - 1,
            "before": self.start - 1, "read-only": self.end, "behind": self.end + PAGE,
            "null": 0, "one": 1, "first-page": PAGE - 1, "not-user": 1 << 47,
            "sign": 1 << 63, "top": (1 << 64) - 1, "top-page": (1 << 64) - PAGE,
        }  # fmt: skip

    def close(self) -> None:
        """Make all of it ordinary memory again, which goes with its last user."""
        self._protect(0, PAGES + 3, _READ_WRITE)
