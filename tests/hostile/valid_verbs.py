"""One of everything in one opening of the HCA, by raw verbs, and a valid message for each verb."""

import os
import tempfile
from collections.abc import Callable
from typing import Any

from shared import verb_codes as codes
from shared.cqe_layout import CQE_SIZE
from shared.verb_messages import (
    NO_FD,
    AllocDm,
    AllocMw,
    CreateAh,
    CreateCq,
    CreateQp,
    CreateSrq,
    DmBytes,
    DmRange,
    ImportByDescriptor,
    ImportMr,
    ModifyPort,
    ModifySrq,
    Multicast,
    Object,
    OpenXrcd,
    PortQuery,
    RegDmMr,
    RegMr,
    ReregMr,
    ResizeCq,
)
from shared.verbs_enums import ibv_access_flags, ibv_qp_attr_mask
from tests.hostile.machines import User
from tests.kernel_proc.driver.queue_user import RC, UD, attributes

QUEUE = 16384
ZERO_BASED = int(ibv_access_flags.IBV_ACCESS_ZERO_BASED)
GROUP = b"\xff\x12" + bytes(13) + b"\x05"
TO_INIT = int(
    ibv_qp_attr_mask.IBV_QP_STATE | ibv_qp_attr_mask.IBV_QP_PKEY_INDEX
    | ibv_qp_attr_mask.IBV_QP_PORT | ibv_qp_attr_mask.IBV_QP_ACCESS_FLAGS
)  # fmt: skip


class OneOfEach:
    """The objects; `restore` makes those again that a hostile message has destroyed."""

    def __init__(self, user: User) -> None:
        self.user = user
        self.verbs = user.verbs()
        self.arena = user.process.allocate(64 * QUEUE, page_aligned=True)
        self.handles: dict[str, int] = {}
        self._used = 0
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the rest
        self.restore()

    @property
    def fd(self) -> int:
        """A descriptor of this process."""
        return self._file.fileno()

    def place(self) -> int:
        """Memory for a queue that nothing made for these objects uses."""
        self._used = (self._used + 1) % 64
        return self.arena.address + self._used * QUEUE

    def restore(self) -> None:
        """Have one of each."""
        alive = {one.handle for one in self.user.context_of(self.verbs).objects()}
        for kind, make in _MAKERS.items():
            if self.handles.get(kind) not in alive:
                self.handles[kind] = make(self).handle

    def close(self) -> None:
        """End the opening, and all that was made in it."""
        self.verbs.device.close()
        self.arena.release()
        self._file.close()

    def __getitem__(self, kind: str) -> int:
        return self.handles[kind]


def _cq(things: OneOfEach) -> CreateCq:
    return CreateCq(15, 0, 1, 0, things.place(), 16 * CQE_SIZE)


def _srq(things: OneOfEach) -> CreateSrq:
    return CreateSrq(things["PD"], 0, 8, 1, 0, 0, things.place(), QUEUE)


def _qp(things: OneOfEach, kind: int = RC) -> CreateQp:
    pd, cq = things["PD"], things["CQ"]
    return CreateQp(kind, pd, cq, cq, 0, 0, 4, 4, 1, 1, 0, 0, 0, 0, things.place(), QUEUE)


def _mr(things: OneOfEach) -> RegMr:
    address = things.place()
    return RegMr(things["PD"], address, 8192, address, 1)


def _ah(things: OneOfEach) -> CreateAh:
    return CreateAh(things["PD"], 1, 1, 0, 0, 0, 0, bytes(16), 0, 0, 0, 0)


_MAKERS: dict[str, Callable[[OneOfEach], Any]] = {
    "PD": lambda one: one.verbs.good(codes.IOCTL_ALLOC_PD),
    "MR": lambda one: one.verbs.good(codes.IOCTL_REG_MR, _mr(one)),
    "MW": lambda one: one.verbs.good(codes.IOCTL_ALLOC_MW, AllocMw(one["PD"], 1)),
    "AH": lambda one: one.verbs.good(codes.IOCTL_CREATE_AH, _ah(one)),
    "CQ": lambda one: one.verbs.good(codes.IOCTL_CREATE_CQ, _cq(one)),
    "SRQ": lambda one: one.verbs.good(codes.IOCTL_CREATE_SRQ, _srq(one)),
    "QP": lambda one: one.verbs.good(codes.IOCTL_CREATE_QP, _qp(one)),
    "UD": lambda one: one.verbs.good(codes.IOCTL_CREATE_QP, _qp(one, UD)),
    "XRCD": lambda one: one.verbs.good(codes.IOCTL_OPEN_XRCD, OpenXrcd(NO_FD, os.O_CREAT)),
    "DM": lambda one: one.verbs.good(codes.IOCTL_ALLOC_DM, AllocDm(4096, 0)),
}


def _object(kind: str) -> Callable[[OneOfEach], Any]:
    return lambda one: Object(one[kind])


def _none(one: OneOfEach) -> Any:
    return None


#: A valid message for every verb.
VALID: dict[int, Callable[[OneOfEach], Any]] = {
    codes.IOCTL_OPEN_CONTEXT: _none,
    codes.IOCTL_QUERY_DEVICE: _none,
    codes.IOCTL_QUERY_PORT: lambda one: PortQuery(1),
    codes.IOCTL_QUERY_GID: lambda one: PortQuery(1, 0),
    codes.IOCTL_QUERY_PKEY: lambda one: PortQuery(1, 0),
    codes.IOCTL_MODIFY_PORT: lambda one: ModifyPort(1, 0, 0, 1),
    codes.IOCTL_ALLOC_PD: _none,
    codes.IOCTL_DEALLOC_PD: _object("PD"),
    codes.IOCTL_REG_MR: _mr,
    codes.IOCTL_REREG_MR: lambda one: ReregMr(one["MR"], 7, one["PD"], one.place(), 8192, 1),
    codes.IOCTL_DEREG_MR: _object("MR"),
    codes.IOCTL_CREATE_AH: _ah,
    codes.IOCTL_DESTROY_AH: _object("AH"),
    codes.IOCTL_CREATE_CQ: _cq,
    codes.IOCTL_RESIZE_CQ: lambda one: ResizeCq(one["CQ"], 31, one.place(), 32 * CQE_SIZE),
    codes.IOCTL_DESTROY_CQ: _object("CQ"),
    codes.IOCTL_CREATE_SRQ: _srq,
    codes.IOCTL_MODIFY_SRQ: lambda one: ModifySrq(one["SRQ"], 2, 0, 1),
    codes.IOCTL_QUERY_SRQ: _object("SRQ"),
    codes.IOCTL_DESTROY_SRQ: _object("SRQ"),
    codes.IOCTL_CREATE_QP: _qp,
    codes.IOCTL_MODIFY_QP: lambda one: attributes(one["QP"], TO_INIT, qp_state=1),
    codes.IOCTL_QUERY_QP: _object("QP"),
    codes.IOCTL_DESTROY_QP: _object("QP"),
    codes.IOCTL_OPEN_XRCD: lambda one: OpenXrcd(one.fd, os.O_CREAT),
    codes.IOCTL_CLOSE_XRCD: _object("XRCD"),
    codes.IOCTL_ATTACH_MCAST: lambda one: Multicast(one["UD"], GROUP, 0xC005),
    codes.IOCTL_DETACH_MCAST: lambda one: Multicast(one["UD"], GROUP, 0xC005),
    codes.IOCTL_ALLOC_MW: lambda one: AllocMw(one["PD"], 1),
    codes.IOCTL_DEALLOC_MW: _object("MW"),
    codes.IOCTL_QUERY_DEVICE_EX: _none,
    codes.IOCTL_QUERY_CLOCK: _none,
    codes.IOCTL_ALLOC_DM: lambda one: AllocDm(4096, 0),
    codes.IOCTL_FREE_DM: _object("DM"),
    codes.IOCTL_COPY_TO_DM: lambda one: DmBytes(one["DM"], 0, b"hostile"),
    codes.IOCTL_COPY_FROM_DM: lambda one: DmRange(one["DM"], 0, 64),
    codes.IOCTL_REG_DM_MR: lambda one: RegDmMr(one["PD"], one["DM"], 0, 4096, ZERO_BASED),
    codes.IOCTL_EXPORT_CONTEXT: lambda one: ImportByDescriptor(one.fd),
    codes.IOCTL_IMPORT_CONTEXT: lambda one: ImportByDescriptor(one.fd),
    codes.IOCTL_IMPORT_PD: _object("PD"),
    codes.IOCTL_IMPORT_MR: lambda one: ImportMr(one["PD"], one["MR"]),
    codes.IOCTL_IMPORT_DM: _object("DM"),
    codes.IOCTL_GET_CA_FATAL_EVENT: lambda one: Object(0),
    codes.IOCTL_GET_CA_PORT_EVENT: lambda one: Object(0),
    codes.IOCTL_GET_CQ_COMP_EVENT: _object("CQ"),
    codes.IOCTL_GET_CQ_ASYNC_EVENT: _object("CQ"),
    codes.IOCTL_GET_QP_ASYNC_EVENT: _object("QP"),
    codes.IOCTL_GET_SRQ_ASYNC_EVENT: _object("SRQ"),
}
