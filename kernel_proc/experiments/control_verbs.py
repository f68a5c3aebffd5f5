"""The control verbs of a kernel client one by one, for experiments to call.

What a verb works on is made when it is made ready, so that what is looked at is the verb alone.

Rules: a system thread at PASSIVE_LEVEL; what `ready` returned at the level of whoever asks.
Spec: docs/kernel-verbs.md; "Using of fast mutexes in WinIb" (the call-back).
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

from kernel_proc.channel_interface.verbs_table import VerbsTable
from kernel_proc.clients import verb_steps
from kernel_proc.machine import Machine
from kernel_proc.memory.mdl import allocate_mdl, build_for_nonpaged_pool
from shared import verb_codes as codes
from shared.verb_messages import (
    AllocMw,
    CreateAh,
    CreateSrq,
    ModifyPort,
    ModifySrq,
    Multicast,
    Object,
    PortQuery,
    ResizeCq,
)
from shared.verbs_enums import ibv_access_flags, ibv_mw_type, ibv_srq_attr_mask

CALL_BACK: Final = "IPoIB-like PnP call-back"

_PORT: Final = 1
_WRITABLE: Final = int(ibv_access_flags.IBV_ACCESS_LOCAL_WRITE)
_SENDS, _RECEIVES = 64, 128
_PAGE: Final = 4096
_QKEY: Final = 0x0B1B
_GROUP: Final = bytes.fromhex("ff12401bffff00000000000000000001")
_GROUP_LID: Final = 0xC001

Verb = Callable[[], object]


class Verbs:
    """What a client of the HCA has beforehand: a domain, a CQ, a datagram QP."""

    def __init__(self, machine: Machine, table: VerbsTable) -> None:
        self._machine = machine
        self._table = table
        self._pd = self._do(codes.IOCTL_ALLOC_PD).handle
        self._cq = verb_steps.make_cq(table, _SENDS)
        self._qp = self._make_qp()

    def ready(self, name: str) -> Verb:
        """Make what a verb works on; return the verb."""
        plain, prepared = self._plain().get(name), self._prepared().get(name)
        return plain if plain is not None else prepared() if prepared else self._unknown(name)

    @staticmethod
    def _unknown(name: str) -> Verb:
        raise ValueError(f"{name!r} is no verb that is tried")

    def _plain(self) -> Mapping[str, Verb]:
        """Return the verbs that need no more than the client has."""
        first = PortQuery(_PORT)
        path = CreateAh(self._pd, _PORT, 1, 0, 0, 0, 0, bytes(16), 0, 0, 0, 0)
        return {
            "query_device": lambda: self._do(codes.IOCTL_QUERY_DEVICE),
            "query_port": lambda: self._do(codes.IOCTL_QUERY_PORT, first),
            "query_gid": lambda: self._do(codes.IOCTL_QUERY_GID, first),
            "query_pkey": lambda: self._do(codes.IOCTL_QUERY_PKEY, first),
            "modify_port": lambda: self._do(codes.IOCTL_MODIFY_PORT, ModifyPort(_PORT, 0, 0, 1)),
            "alloc_pd": lambda: self._do(codes.IOCTL_ALLOC_PD),
            "reg_mr of new memory": self._register_memory,
            "create_ah": lambda: self._do(codes.IOCTL_CREATE_AH, path),
            "create_cq": lambda: verb_steps.make_cq(self._table, _SENDS),
            "create_srq": self._make_srq,
            "create_qp": self._make_qp,
            "modify_qp": lambda: self._start(self._qp),
            "query_qp": lambda: self._do(codes.IOCTL_QUERY_QP, Object(self._qp)),
            "destroy_qp": lambda: self._do(codes.IOCTL_DESTROY_QP, Object(self._qp)),
            "alloc_mw": self._make_window,
            CALL_BACK: self._call_back,
        }

    def _prepared(self) -> Mapping[str, Callable[[], Verb]]:
        """Return what makes ready the verbs that need an object of their own."""
        return {
            "dealloc_pd": lambda: self._ending(codes.IOCTL_DEALLOC_PD, self._spare_pd()),
            "reg_mr of an MDL": self._described,
            "dereg_mr": lambda: self._ending(codes.IOCTL_DEREG_MR, self._register_memory()),
            "destroy_ah": lambda: self._ending(
                codes.IOCTL_DESTROY_AH, self._plain()["create_ah"]()
            ),
            "destroy_cq": lambda: self._ending(codes.IOCTL_DESTROY_CQ, self._spare_cq()),
            "resize_cq": self._longer,
            "modify_srq": self._limited,
            "query_srq": lambda: self._ending(codes.IOCTL_QUERY_SRQ, self._make_srq()),
            "destroy_srq": lambda: self._ending(codes.IOCTL_DESTROY_SRQ, self._make_srq()),
            "attach_mcast": self._member,
            "detach_mcast": self._detached,
            "dealloc_mw": lambda: self._ending(codes.IOCTL_DEALLOC_MW, self._make_window()),
        }

    def _do(self, code: int, request: Any = None) -> Any:
        return verb_steps.do(self._table, code, request)

    def _ending(self, code: int, made: Any) -> Verb:
        """Return a verb that names an object alone."""
        return lambda: self._do(code, Object(made if isinstance(made, int) else made.handle))

    # Objects

    def _make_qp(self, **sizes: int) -> int:
        request = verb_steps.qp_request(verb_steps.UD, self._pd, (self._cq, self._cq), **sizes)
        handle: int = self._do(codes.IOCTL_CREATE_QP, request).handle
        return handle

    def _start(self, qp: int) -> None:
        verb_steps.start_datagrams(self._table, qp, _PORT, _QKEY)

    def _make_srq(self) -> Any:
        return self._do(codes.IOCTL_CREATE_SRQ, CreateSrq(self._pd, 0, _SENDS, 1, 0, 0, 0, 0))

    def _make_window(self) -> Any:
        kind = int(ibv_mw_type.IBV_MW_TYPE_1)
        return self._do(codes.IOCTL_ALLOC_MW, AllocMw(self._pd, kind))

    def _spare_pd(self) -> Any:
        return self._do(codes.IOCTL_ALLOC_PD)

    def _spare_cq(self) -> int:
        return verb_steps.make_cq(self._table, _SENDS)

    def _register_memory(self, length: int = _PAGE) -> Any:
        answer = self._table.register_memory(self._pd, length, _WRITABLE)
        return verb_steps.require(answer, "register_memory").reply

    def _described(self) -> Verb:
        hca = self._machine.hca
        assert hca is not None
        page = hca.memory.allocate_contiguous(_PAGE)
        assert page is not None
        mdl = allocate_mdl(self._machine.processor, page, _PAGE)
        assert mdl is not None
        build_for_nonpaged_pool(mdl)
        return lambda: verb_steps.require(
            self._table.register_mdl(self._pd, mdl, _WRITABLE), "register_mdl"
        )

    def _longer(self) -> Verb:
        request = ResizeCq(self._spare_cq(), 4 * _SENDS, 0, 0)
        return lambda: self._do(codes.IOCTL_RESIZE_CQ, request)

    def _limited(self) -> Verb:
        limit = int(ibv_srq_attr_mask.IBV_SRQ_LIMIT)
        request = ModifySrq(self._make_srq().handle, limit, 0, _SENDS // 2)
        return lambda: self._do(codes.IOCTL_MODIFY_SRQ, request)

    def _joining(self) -> Multicast:
        qp = self._make_qp()
        self._start(qp)
        return Multicast(qp, _GROUP, _GROUP_LID)

    def _member(self) -> Verb:
        request = self._joining()
        return lambda: self._do(codes.IOCTL_ATTACH_MCAST, request)

    def _detached(self) -> Verb:
        request = self._joining()
        self._do(codes.IOCTL_ATTACH_MCAST, request)
        return lambda: self._do(codes.IOCTL_DETACH_MCAST, request)

    def _call_back(self) -> None:
        """Make everything an IPoIB interface needs."""
        self._cq = verb_steps.make_cq(self._table, _SENDS + _RECEIVES)
        qp = self._make_qp(max_send_wr=_SENDS, max_recv_wr=_RECEIVES)
        self._register_memory((_SENDS + _RECEIVES) * _PAGE)
        self._start(qp)


VERBS: Final = (
    "query_device", "query_port", "query_gid", "query_pkey", "modify_port", "alloc_pd",
    "dealloc_pd", "reg_mr of new memory", "reg_mr of an MDL", "dereg_mr", "create_ah",
    "destroy_ah", "create_cq", "resize_cq", "destroy_cq", "create_srq", "modify_srq", "query_srq",
    "destroy_srq", "create_qp", "modify_qp", "query_qp", "destroy_qp", "attach_mcast",
    "detach_mcast", "alloc_mw", "dealloc_mw", CALL_BACK,
)  # fmt: skip
