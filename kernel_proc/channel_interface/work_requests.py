"""Work requests and completions of a kernel client: types only.

Rules: a request that was posted once is not changed any more, since its packed entry is kept; it
may be posted any number of times, to any queue. Addresses are those of the key: what the driver
registered for a kernel client counts from 0.
Spec: WinOF inc/iba/ib_types.h (ib_send_wr_t, ib_recv_wr_t, ib_wc_t); shared/wqe_layout.py.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from kernel_proc.channel_interface.ib_status import IbStatus
from shared.verbs_enums import ibv_send_flags, ibv_wr_opcode
from shared.wqe_layout import BindSegment

SEND: Final = int(ibv_wr_opcode.IBV_WR_SEND)
SIGNALED: Final = int(ibv_send_flags.IBV_SEND_SIGNALED)


class LocalSegment(NamedTuple):
    """A piece of registered memory (ib_local_ds_t)."""

    address: int
    length: int
    lkey: int


class SendRequest:
    """A request for a send queue; `flags` are ibv_send_flags, `opcode` an ibv_wr_opcode.

    `inline_data` is copied by the post instead of `segments`. A datagram goes to `remote_qpn` by
    the address handle `ah`. `imm_data` is in network order, or the key to invalidate.
    """

    __slots__ = (
        "ah",
        "bind",
        "compare_add",
        "flags",
        "imm_data",
        "inline_data",
        "opcode",
        "packed",
        "packed_for",
        "remote_address",
        "remote_qkey",
        "remote_qpn",
        "rkey",
        "segments",
        "srqn",
        "swap",
        "wr_id",
    )

    def __init__(
        self,
        wr_id: int = 0,
        opcode: int = SEND,
        segments: Sequence[LocalSegment] = (),
        flags: int = SIGNALED,
        imm_data: int = 0,
        inline_data: bytes | None = None,
        remote_address: int = 0,
        rkey: int = 0,
        compare_add: int = 0,
        swap: int = 0,
        ah: int = 0,
        remote_qpn: int = 0,
        remote_qkey: int = 0,
        srqn: int = 0,
        bind: BindSegment | None = None,
    ) -> None:
        self.wr_id = wr_id
        self.opcode = opcode
        self.segments = segments
        self.flags = flags
        self.imm_data = imm_data
        self.inline_data = inline_data
        self.remote_address = remote_address
        self.rkey = rkey
        self.compare_add = compare_add
        self.swap = swap
        self.ah = ah
        self.remote_qpn = remote_qpn
        self.remote_qkey = remote_qkey
        self.srqn = srqn
        self.bind = bind
        # The driver's: the entry, and the queue for which it was judged and packed.
        self.packed = b""
        self.packed_for: object = None


class ReceiveRequest:
    """A request for a receive queue or a shared one."""

    __slots__ = ("packed", "packed_for", "segments", "wr_id")

    def __init__(self, wr_id: int = 0, segments: Sequence[LocalSegment] = ()) -> None:
        self.wr_id = wr_id
        self.segments = segments
        # The driver's, as a send request's.
        self.packed = b""
        self.packed_for: object = None


class WorkCompletion(NamedTuple):
    """One completion (ib_wc_t); `status` is an ibv_wc_status, `opcode` an ibv_wc_opcode."""

    wr_id: int
    status: int
    opcode: int
    vendor_err: int
    byte_len: int
    imm_data: int
    qpn: int
    src_qp: int
    wc_flags: int
    pkey_index: int
    slid: int
    sl: int
    dlid_path_bits: int


class PostAnswer(NamedTuple):
    """What became of a post: `posted` requests were taken, the next one is why it stopped."""

    status: IbStatus
    posted: int


class PollAnswer(NamedTuple):
    """What a poll found: SUCCESS and completions in their order, or NOT_FOUND and none."""

    status: IbStatus
    completions: Sequence[WorkCompletion]
