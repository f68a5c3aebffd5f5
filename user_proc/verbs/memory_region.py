"""Memory regions.

Without an address a region has memory of its own in an arena: page aligned, zeroed, reached by
kernel and device without a copy. Any other address of the process is legal, too.

Rules: any thread. Memory given by address stays the program's: it must live as long as the region.
Spec: rdma-core, pyverbs/mr.pyx; ibv_reg_mr(3), ibv_rereg_mr(3).
"""

import ctypes
from typing import Any, ClassVar, Final

from shared.verb_codes import IOCTL_DEREG_MR, IOCTL_IMPORT_MR, IOCTL_REG_MR, IOCTL_REREG_MR
from shared.verb_messages import ImportMr, MrImported, Registered, RegMr, ReregMr
from shared.verbs_enums import (
    ibv_access_flags,
    ibv_rereg_mr_err_code,
    ibv_rereg_mr_flags,
)
from user_proc.errors import SofthcaError
from user_proc.memory.arena import ArenaBuffer
from user_proc.verbs.argument_types import optional, require_some
from user_proc.verbs.c_integers import IntLike, to_int, to_u32, to_u64
from user_proc.verbs.fork import note_registration
from user_proc.verbs.pd import PD
from user_proc.verbs.printing import lines
from user_proc.verbs.pyverbs_error import PyverbsError, PyverbsUserError
from user_proc.verbs.utils import rereg_error_to_str
from user_proc.verbs.verb_object import VerbObject
from user_proc.verbs.verb_session import Resource, VerbRefusal

_HUGE_PAGE: Final = 2 << 20
_WHOLE: Final = (1 << 64) - 1
_MOST_OWN: Final = 1 << 40  # more than any arena; the kernel says how much it gives
_U32: Final = 0xFFFF_FFFF

_HUGETLB: Final = int(ibv_access_flags.IBV_ACCESS_HUGETLB)
_ON_DEMAND: Final = int(ibv_access_flags.IBV_ACCESS_ON_DEMAND)
_ZERO_BASED: Final = int(ibv_access_flags.IBV_ACCESS_ZERO_BASED)
_TRANSLATION: Final = int(ibv_rereg_mr_flags.IBV_REREG_MR_CHANGE_TRANSLATION)
_PD: Final = int(ibv_rereg_mr_flags.IBV_REREG_MR_CHANGE_PD)
_ERR_COMMAND: Final = int(ibv_rereg_mr_err_code.IBV_REREG_MR_ERR_CMD)


class OwnMemory:
    """A region's own buffer; let go when it is replaced or the region is destroyed."""

    __slots__ = ("buffer",)

    def __init__(self, buffer: ArenaBuffer | None) -> None:
        self.buffer = buffer

    def release(self) -> None:
        """Give it back, if there is one."""
        buffer, self.buffer = self.buffer, None
        if buffer is not None:
            buffer.release()


class MR(VerbObject):
    """A memory region; `buf` is its address, 0 if the region was imported by its handle.

    An imported region is another context's, which may end it at any time: then its keys name
    nothing any more.
    """

    KIND: ClassVar[str] = "MR"
    DESTROY_TEXT: ClassVar[str] = "Failed to dereg MR"

    def __init__(
        self,
        creator: Any,
        length: IntLike = 0,
        access: IntLike = 0,
        address: IntLike | None = None,
        implicit: bool = False,
        *,
        handle: IntLike | None = None,
    ) -> None:
        if not isinstance(require_some("creator", creator), PD):
            self._resource = None
            raise PyverbsUserError(f"Cannot create MR from {type(creator)}")
        super().__init__(creator._session)
        size, flags = to_u64(length), to_int(access)
        self.pd = creator
        self._own = OwnMemory(None)
        self._imported = handle is not None
        if handle is not None:
            self._import(to_u32(handle))
        else:
            self._register(size, flags, address, implicit)

    def _import(self, handle: int) -> None:
        """Be a region that somebody else has registered."""
        self._buf = 0
        request = ImportMr(self.pd.handle, handle)
        try:
            made = self._session.call(MrImported, IOCTL_IMPORT_MR, request)
        except VerbRefusal as refusal:
            raise refusal.error("Failed to import MR") from refusal
        self._become(made, made.length)
        self.logger.debug("Imported ibv_mr. Length: %d", made.length)

    def _register(self, size: int, flags: int, address: IntLike | None, implicit: bool) -> None:
        """Register memory: the whole address space, what is at an address, or one's own."""
        domain = self.pd.handle
        if implicit:
            self._buf, size, flags = 0, _WHOLE, flags | _ON_DEMAND
        elif address is not None:
            self._buf = to_u64(address)
        else:
            self._buf = self._allocate(size, flags)
        note_registration()
        request = RegMr(domain, self._buf, size, self._first_address(flags), flags & _U32)
        try:
            made = self._session.call(Registered, IOCTL_REG_MR, request)
        except VerbRefusal as refusal:
            self._own.release()
            raise refusal.error(self._failure(size, flags)) from refusal
        self._become(made, size)
        self.logger.debug("Registered ibv_mr. Length: %d, access flags %d", size, flags)

    def _become(self, made: Registered | MrImported, size: int, keep: object = None) -> None:
        """Be the region that was registered; `keep` must live as long as it."""
        self._length = size
        self._keys = made.lkey, made.rkey
        self._resource = Resource(
            self._session, IOCTL_DEREG_MR, made.handle, self._own.release, keep or self.pd
        )
        self.pd.adopt(self)

    def _first_address(self, flags: int) -> int:
        """Give the address that the region's first byte has to its keys."""
        return 0 if flags & _ZERO_BASED else self._buf

    def _failure(self, size: int, flags: int) -> str:
        """Say what could not be registered."""
        return f"Failed to register a MR. length: {size}, access flags: {flags}"

    @property
    def buf(self) -> int:
        """The address of the memory."""
        self.handle  # noqa: B018 - a closed region has none
        return self._buf

    @property
    def lkey(self) -> int:
        """The key for one's own requests."""
        self.handle  # noqa: B018
        return self._keys[0]

    @property
    def rkey(self) -> int:
        """The key for the peer's requests."""
        self.handle  # noqa: B018
        return self._keys[1]

    @property
    def length(self) -> int:
        """Bytes registered."""
        self.handle  # noqa: B018
        return self._length

    def unimport(self) -> None:
        """Drop an imported region, which stays as it is."""
        if not self._imported:
            raise PyverbsUserError("the MR was not imported")
        self.close()

    def view(self) -> memoryview:
        """Give the memory itself, to be read and written in place.

        Of a region with memory of its own the bytes stay readable as long as the view lives, also
        after `close`; memory given by address must outlive the view.
        """
        self.handle  # noqa: B018
        if self._own.buffer is not None:
            return self._own.buffer.view[: self._length]
        if not self._buf:
            raise PyverbsUserError("the region has no address in this process")
        return memoryview((ctypes.c_ubyte * self._length).from_address(self._buf)).cast("B")

    def write(self, data: str | bytes, length: IntLike, offset: IntLike = 0) -> None:
        """Store `length` bytes of text (as UTF-8) or bytes."""
        size, start = to_int(length), to_int(offset)
        self._check_buffer(size)
        source = data.encode() if isinstance(data, str) else bytes(data)
        if size > len(source):
            raise PyverbsUserError(f"the data has {len(source)} bytes, fewer than {size}")
        self._check_range(size, start)
        ctypes.memmove(self._buf + start, source, size)

    def read(self, length: IntLike, offset: IntLike) -> bytes:
        """Load `length` bytes."""
        size, start = to_int(length), to_int(offset)
        if start < 0:
            raise PyverbsUserError(f"Invalid offset {start}")
        self._check_buffer(size)
        self._check_range(size, start)
        return ctypes.string_at(self._buf + start, size)

    def rereg(
        self,
        flags: IntLike,
        pd: PD | None = None,
        addr: IntLike = 0,
        length: IntLike = 0,
        access: IntLike = 0,
    ) -> None:
        """Change memory, domain or access; read both keys again afterwards.

        With a new translation `buf` is `addr`, and the memory is the program's from then on.
        """
        domain = optional("pd", pd, PD)
        what, start, size, rights = to_int(flags), to_u64(addr), to_u64(length), to_int(access)
        with self._closing:
            try:
                pd_handle = 0 if domain is None else domain.handle_for(self._session)
                request = ReregMr(self.handle, what & _U32, pd_handle, start, size, rights & _U32)
                made = self._session.call(Registered, IOCTL_REREG_MR, request)
            except VerbRefusal as refusal:
                code = _rereg_code(refusal)
                text = f"Failed to rereg MR: {rereg_error_to_str(code)}"
                raise refusal.error(text) from refusal
            self._keys = made.lkey, made.rkey
            if what & _TRANSLATION:
                self._own.release()
                self._buf, self._length = start, size
            if what & _PD and domain is not None:
                self._move(domain)

    def _shown(self) -> str:
        return "MR:\n" + lines(
            22,
            [
                ("lkey", self.lkey),
                ("rkey", self.rkey),
                ("length", self.length),
                ("buf", self.buf),
                ("handle", self.handle),
            ],
        )

    def _move(self, domain: PD) -> None:
        """Be a child of another domain."""
        self.pd.disown(self)
        self.pd = domain
        domain.adopt(self)
        if self._resource is not None:
            self._resource.keep = domain

    def _allocate(self, size: int, flags: int) -> int:
        """Have memory of one's own; its address, 0 for no bytes at all."""
        if not size:
            return 0  # the driver says what it thinks of that
        taken = -(-size // _HUGE_PAGE) * _HUGE_PAGE if flags & _HUGETLB else size
        failure = f"Failed to allocate MR buffer of size {size}"
        if taken > _MOST_OWN:
            raise PyverbsError(failure)
        try:
            buffer = self._session.process.allocate(taken, page_aligned=True)
        except (SofthcaError, ValueError, OSError) as error:
            raise PyverbsError(f"{failure}: {error}") from error
        ctypes.memset(buffer.address, 0, taken)
        self._own.buffer = buffer
        return buffer.address

    def _check_buffer(self, size: int) -> None:
        self.handle  # noqa: B018
        if not self._buf or size < 0:
            raise PyverbsUserError(f"The MR buffer isn't allocated or length {size} is invalid")

    def _check_range(self, size: int, start: int) -> None:
        if start < 0 or size < 0 or start + size > self.length:
            raise PyverbsUserError(
                f"{size} bytes at offset {start} reach past the region's {self._length}"
            )


def _rereg_code(refusal: VerbRefusal) -> int:
    """Give what ibv_rereg_mr returns: the driver says it in `detail`, its size apart."""
    code = -(refusal.detail & 0xFF) if refusal.detail < 256 else refusal.detail - (1 << 64)
    known = {int(member) for member in ibv_rereg_mr_err_code}
    return code if code in known else _ERR_COMMAND
