"""Memory of the device: allocated in it, reached by regions over it and by copies.

Rules: any thread. A copy is made by the kernel, piece by piece: others may see it half done.
Spec: rdma-core, pyverbs/device.pyx; ibv_alloc_dm(3); docs/device-memory.md.
"""

import errno
from typing import ClassVar, NoReturn

from shared.verb_codes import (
    IOCTL_ALLOC_DM,
    IOCTL_COPY_FROM_DM,
    IOCTL_COPY_TO_DM,
    IOCTL_FREE_DM,
    IOCTL_IMPORT_DM,
)
from shared.verb_messages import (
    DM_BYTES_AT_ONCE,
    AllocDm,
    DmBytes,
    DmContents,
    DmImported,
    DmRange,
    Object,
)
from user_proc.verbs.argument_types import require
from user_proc.verbs.base import PyverbsObject
from user_proc.verbs.c_integers import CField, IntLike, to_int, to_u32, to_u64
from user_proc.verbs.device_context import Context
from user_proc.verbs.pyverbs_error import PyverbsRDMAError, PyverbsUserError
from user_proc.verbs.verb_object import VerbObject
from user_proc.verbs.verb_session import Resource, VerbRefusal


class AllocDmAttr(PyverbsObject):
    """ibv_alloc_dm_attr."""

    length = CField(to_u64)
    log_align_req = CField(to_u32)
    comp_mask = CField(to_u32)

    def __init__(self, length: IntLike, log_align_req: IntLike = 0, comp_mask: IntLike = 0) -> None:
        super().__init__()
        self.length = length
        self.log_align_req = log_align_req
        self.comp_mask = comp_mask


class DM(VerbObject):
    """Memory of the device, zeroed when it is allocated; or, by its handle, imported."""

    KIND: ClassVar[str] = "DM"
    CHILD_ORDER: ClassVar[tuple[str, ...]] = ("MR",)
    DESTROY_TEXT: ClassVar[str] = "Failed to free dm"

    def __init__(
        self,
        context: Context,
        dm_attr: AllocDmAttr | None = None,
        *,
        handle: IntLike | None = None,
    ) -> None:
        self._resource = None
        self.context = require("context", context, Context)
        super().__init__(self.context.session())
        self._imported = handle is not None
        if handle is not None:
            made, self._length = self._import(to_u32(handle))
        else:
            attr = require("dm_attr", dm_attr, AllocDmAttr)
            made, self._length = self._allocate(attr), attr.length
        self._resource = Resource(self._session, IOCTL_FREE_DM, made, keep=self.context)
        self.context.adopt(self)
        self.logger.debug("Have device memory of size %d", self._length)

    def _allocate(self, attr: AllocDmAttr) -> int:
        """Have memory of one's own; its handle."""
        most = self.context.query_device_ex().max_dm_size
        if not most:
            raise PyverbsUserError("Device doesn't support dm allocation")
        text = f"Failed to allocate device memory of size {attr.length}. Max available size {most}."
        if attr.comp_mask:
            raise PyverbsRDMAError(text, errno.EOPNOTSUPP, reason="comp_mask must be 0")
        request = AllocDm(attr.length, attr.log_align_req)
        try:
            return self._session.call(Object, IOCTL_ALLOC_DM, request).handle
        except VerbRefusal as refusal:
            raise refusal.error(text) from refusal

    def _import(self, handle: int) -> tuple[int, int]:
        """Open memory once more that somebody has; one's own handle, and the length."""
        try:
            made = self._session.call(DmImported, IOCTL_IMPORT_DM, Object(handle))
        except VerbRefusal as refusal:
            raise refusal.error("Failed to import DM") from refusal
        return made.handle, made.length

    def unimport(self) -> None:
        """Drop imported memory: regions over it here are closed, the memory itself stays."""
        if not self._imported:
            raise PyverbsUserError("the DM was not imported")
        self.close()

    def copy_to_dm(self, dm_offset: IntLike, data: bytes, length: IntLike) -> None:
        """Store `length` bytes of the data."""
        start, size = self._range(dm_offset, length)
        source = memoryview(bytes(data))
        if size > len(source):
            raise PyverbsUserError(f"the data has {len(source)} bytes, fewer than {size}")
        handle = self.handle
        try:
            for at in range(0, size, DM_BYTES_AT_ONCE):
                piece = bytes(source[at : min(size, at + DM_BYTES_AT_ONCE)])
                self._session.do(IOCTL_COPY_TO_DM, DmBytes(handle, start + at, piece))
        except VerbRefusal as refusal:
            raise refusal.error("Failed to copy to dm") from refusal

    def copy_from_dm(self, dm_offset: IntLike, length: IntLike) -> bytes:
        """Load `length` bytes."""
        start, size = self._range(dm_offset, length)
        handle, pieces = self.handle, []
        try:
            for at in range(0, size, DM_BYTES_AT_ONCE):
                wanted = DmRange(handle, start + at, min(DM_BYTES_AT_ONCE, size - at))
                pieces.append(self._session.call(DmContents, IOCTL_COPY_FROM_DM, wanted).data)
        except VerbRefusal as refusal:
            raise refusal.error("Failed to copy from dm") from refusal
        return b"".join(pieces)

    def export_dmabuf_fd(self) -> NoReturn:
        """Refuse: the memory is no file that could be given away."""
        self.handle  # noqa: B018 - closed memory has none
        raise PyverbsRDMAError(
            "Failed to export dmabuf FD for DM",
            errno.EOPNOTSUPP,
            reason="the device's memory has no dma-buf",
        )

    def _range(self, offset: IntLike, length: IntLike) -> tuple[int, int]:
        start, size = to_int(offset), to_int(length)
        self.handle  # noqa: B018
        if start < 0 or size < 0 or start + size > self._length:
            raise PyverbsUserError(
                f"{size} bytes at offset {start} reach past the {self._length} of the memory"
            )
        return start, size
