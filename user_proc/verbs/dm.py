"""Memory of the device: allocated in it, reached by regions over it and by copies.

Rules: any thread. A copy is made by the kernel, piece by piece: others may see it half done.
Spec: rdma-core, pyverbs/device.pyx; ibv_alloc_dm(3); docs/device-memory.md.
"""

import errno
from typing import ClassVar, NoReturn

from shared.verb_codes import IOCTL_ALLOC_DM, IOCTL_COPY_FROM_DM, IOCTL_COPY_TO_DM, IOCTL_FREE_DM
from shared.verb_messages import (
    DM_BYTES_AT_ONCE,
    AllocDm,
    DmBytes,
    DmContents,
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
    """Memory of the device, zeroed when it is allocated."""

    KIND: ClassVar[str] = "DM"
    CHILD_ORDER: ClassVar[tuple[str, ...]] = ("MR",)
    DESTROY_TEXT: ClassVar[str] = "Failed to free dm"

    def __init__(self, context: Context, dm_attr: AllocDmAttr | None = None) -> None:
        self._resource = None
        self.context = require("context", context, Context)
        attr = require("dm_attr", dm_attr, AllocDmAttr)
        super().__init__(self.context.session())
        most = self.context.query_device_ex().max_dm_size
        if not most:
            raise PyverbsUserError("Device doesn't support dm allocation")
        text = f"Failed to allocate device memory of size {attr.length}. Max available size {most}."
        if attr.comp_mask:
            raise PyverbsRDMAError(text, errno.EOPNOTSUPP, reason="comp_mask must be 0")
        try:
            made = self._session.call(
                Object, IOCTL_ALLOC_DM, AllocDm(attr.length, attr.log_align_req)
            )
        except VerbRefusal as refusal:
            raise refusal.error(text) from refusal
        self._length = attr.length
        self._resource = Resource(self._session, IOCTL_FREE_DM, made.handle, keep=self.context)
        self.context.adopt(self)
        self.logger.debug("Allocated device memory of size %d", attr.length)

    @property
    def handle(self) -> int:
        """The kernel's handle."""
        return self._handle

    def copy_to_dm(self, dm_offset: IntLike, data: bytes, length: IntLike) -> None:
        """Store `length` bytes of the data."""
        start, size = self._range(dm_offset, length)
        source = memoryview(bytes(data))
        if size > len(source):
            raise PyverbsUserError(f"the data has {len(source)} bytes, fewer than {size}")
        handle = self._handle
        try:
            for at in range(0, size, DM_BYTES_AT_ONCE):
                piece = bytes(source[at : min(size, at + DM_BYTES_AT_ONCE)])
                self._session.do(IOCTL_COPY_TO_DM, DmBytes(handle, start + at, piece))
        except VerbRefusal as refusal:
            raise refusal.error("Failed to copy to dm") from refusal

    def copy_from_dm(self, dm_offset: IntLike, length: IntLike) -> bytes:
        """Load `length` bytes."""
        start, size = self._range(dm_offset, length)
        handle, pieces = self._handle, []
        try:
            for at in range(0, size, DM_BYTES_AT_ONCE):
                wanted = DmRange(handle, start + at, min(DM_BYTES_AT_ONCE, size - at))
                pieces.append(self._session.call(DmContents, IOCTL_COPY_FROM_DM, wanted).data)
        except VerbRefusal as refusal:
            raise refusal.error("Failed to copy from dm") from refusal
        return b"".join(pieces)

    def export_dmabuf_fd(self) -> NoReturn:
        """Refuse: the memory is no file that could be given away."""
        self._handle  # noqa: B018 - closed memory has none
        raise PyverbsRDMAError(
            "Failed to export dmabuf FD for DM",
            errno.EOPNOTSUPP,
            reason="the device's memory has no dma-buf",
        )

    def _range(self, offset: IntLike, length: IntLike) -> tuple[int, int]:
        start, size = to_int(offset), to_int(length)
        self._handle  # noqa: B018
        if start < 0 or size < 0 or start + size > self._length:
            raise PyverbsUserError(
                f"{size} bytes at offset {start} reach past the {self._length} of the memory"
            )
        return start, size
