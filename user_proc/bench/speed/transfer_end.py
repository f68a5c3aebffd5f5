"""One end of a measured transfer: queue pairs, a region, completion queues, and the other end.

The first half of the region is sent from and read into by the peer's RDMA reads; the second half is
where messages come in. All queue pairs of an end share it.

Rules: one thread.
"""

import ctypes
import random
import zlib
from collections.abc import Mapping
from typing import Any, Final

from shared.segment import round_to_pages
from shared.verbs_enums import ibv_qp_type, ibv_send_flags, ibv_wr_opcode
from user_proc.bench.speed.shared_places import place_of
from user_proc.bench.speed.speed_rows import EVENT, SpeedSpec
from user_proc.bench.speed.speed_waiting import make_waiter
from user_proc.verbs.addr import AH, AHAttr
from user_proc.verbs.cq import CQ, CompChannel
from user_proc.verbs.device import Context
from user_proc.verbs.mr import MR
from user_proc.verbs.pd import PD
from user_proc.verbs.qp import QP, QPAttr, QPCap, QPInitAttr
from user_proc.verbs.wr import SGE, RecvWR, SendWR

SIGNALED_EVERY: Final = 32  # of the messages that are timed one by one
_LEAST_RECEIVES: Final = 64
_ACCESS: Final = 1 | 2 | 4 | 8
_PORT: Final = 1
_QKEY: Final = 0x5EED
_GRH_BYTES: Final = 40
UNTOUCHED: Final = 0xA5  # the same at both ends, which count on from the last byte
_PATTERN_BYTES: Final = 1 << 16
_SIGNALED: Final = int(ibv_send_flags.IBV_SEND_SIGNALED)
_TYPES: Final = {"RC": int(ibv_qp_type.IBV_QPT_RC), "UD": int(ibv_qp_type.IBV_QPT_UD)}
_OPCODES: Final = {
    "post_to_poll": "RDMA_WRITE",
    "send_lat": "SEND",
    "write_lat": "RDMA_WRITE",
    "read_lat": "RDMA_READ",
    "atomic_lat": "ATOMIC_FETCH_AND_ADD",
    "send_bw": "SEND",
    "write_bw": "RDMA_WRITE",
    "read_bw": "RDMA_READ",
    "msg_rate": "SEND",
}


class TransferEnd:
    """An end of a row's transfers; `receives` are the receive requests each queue pair holds."""

    def __init__(self, context: Context, spec: SpeedSpec) -> None:
        self.spec: Final = spec
        self._context = context
        self._pd = PD(context)
        self._is_datagram = spec.transport == "UD"
        self.receives = max(_LEAST_RECEIVES, 4 * spec.depth)
        headroom = _GRH_BYTES if self._is_datagram else 0
        self.half = round_to_pages(spec.bytes + headroom)
        self.region = MR(self._pd, 2 * self.half, _ACCESS)
        self.view = self.region.view()
        self.source = self.region.buf
        self.target = self.source + self.half
        self._data_at = self.half + headroom
        waits = spec.mode == EVENT
        self._channel = CompChannel(context) if waits else None
        sends = spec.op == "read_lat" or spec.op == "atomic_lat"
        depth = max(spec.depth, SIGNALED_EVERY * 2)
        self.send_cq = CQ(context, depth * spec.qps, channel=self._channel if sends else None)
        receive_channel = None if sends else self._channel
        self.receive_cq = CQ(context, self.receives * spec.qps, channel=receive_channel)
        self.wait_sent = make_waiter(self.send_cq, self.send_cq.comp_channel)
        self.wait_received = make_waiter(self.receive_cq, self.receive_cq.comp_channel)
        cap = QPCap(depth, self.receives, 1, 1, 0)
        self.qps = [self._queue_pair(cap) for _ in range(spec.qps)]
        self._peer: Mapping[str, Any] = {}
        self._handles: list[AH] = []
        self.numbers = {qp.qp_num: index for index, qp in enumerate(self.qps)}

    def _queue_pair(self, cap: QPCap) -> QP:
        attr = QPInitAttr(
            qp_type=_TYPES[self.spec.transport],
            scq=self.send_cq,
            rcq=self.receive_cq,
            cap=cap,
            sq_sig_all=0,
        )
        return QP(self._pd, attr)

    # Being connected

    def address(self) -> dict[str, Any]:
        """Return what the peer must know."""
        path, offset = place_of(self.source)
        return {
            "numbers": [qp.qp_num for qp in self.qps],
            "address": self.source,
            "rkey": self.region.rkey,
            "lid": self._context.query_port(_PORT).lid,
            "path": path,
            "offset": offset,
        }

    def connect(self, peer: Mapping[str, Any]) -> None:
        """Bring every queue pair to RTS towards the peer's of the same place, with receives."""
        self._peer = peer
        for qp, number in zip(self.qps, peer["numbers"], strict=True):
            if self._is_datagram:
                attr = QPAttr(port_num=_PORT)
                attr.qkey = _QKEY
                self._handles.append(AH(self._pd, attr=AHAttr(dlid=peer["lid"], port_num=_PORT)))
            else:
                attr = self._connected(number, peer["lid"])
            qp.to_rts(attr)
        if self.spec.op in ("send_lat", "send_bw", "msg_rate"):
            for qp in self.qps:
                qp.post_recv(self.receive_requests(self.receives))
        for cq in (self.send_cq, self.receive_cq):
            if cq.comp_channel is not None:
                cq.req_notify()

    def _connected(self, number: int, lid: int) -> QPAttr:
        attr = QPAttr(port_num=_PORT)
        attr.qp_access_flags = _ACCESS
        attr.path_mtu = self._context.query_port(_PORT).active_mtu
        attr.dest_qp_num = number
        attr.max_rd_atomic = attr.max_dest_rd_atomic = 4
        attr.min_rnr_timer, attr.timeout, attr.retry_cnt, attr.rnr_retry = 1, 14, 7, 7
        attr.ah_attr = AHAttr(dlid=lid, port_num=_PORT)
        return attr

    # Requests

    def receive_requests(self, count: int) -> RecvWR:
        """Return a chain of so many receive requests."""
        length = self.spec.bytes + (_GRH_BYTES if self._is_datagram else 0)
        element = SGE(self.target, length, self.region.lkey)
        first: RecvWR | None = None
        for _ in range(count):
            first = RecvWR(0, 1, [element], first)
        assert first is not None
        return first

    def send_requests(self, index: int, count: int, *, signaled: bool = True) -> SendWR:
        """Return a chain of so many requests for a queue pair; only the last may be signaled.

        Their wr_id is the queue pair's place.
        """
        opcode = int(ibv_wr_opcode[f"IBV_WR_{_OPCODES[self.spec.op]}"])
        reads = _OPCODES[self.spec.op] in ("RDMA_READ", "ATOMIC_FETCH_AND_ADD")
        local = self.target if reads else self.source
        element = SGE(local, self.spec.bytes, self.region.lkey)
        first: SendWR | None = None
        for place in range(count):
            flags = _SIGNALED if signaled and place == 0 else 0
            first = SendWR(index, opcode, 1, 0, [element], flags, first)
            self._aim(first, index)
        assert first is not None
        return first

    def _aim(self, wr: SendWR, index: int) -> None:
        peer, op = self._peer, _OPCODES[self.spec.op]
        if self._is_datagram:
            wr.set_wr_ud(self._handles[index], peer["numbers"][index], _QKEY)
        elif op == "ATOMIC_FETCH_AND_ADD":
            wr.set_wr_atomic(peer["rkey"], peer["address"], 1)
        elif op == "RDMA_READ":
            wr.set_wr_rdma(peer["rkey"], peer["address"])
        elif op == "RDMA_WRITE":
            wr.set_wr_rdma(peer["rkey"], peer["address"] + self.half)

    # Payload

    @property
    def last_came_at(self) -> int:
        """Return the place in `view` of the last byte of what comes in."""
        return self._data_at + self.spec.bytes - 1

    def fill(self, seed: int) -> None:
        """Write every byte of what will be sent, and something else where messages come in."""
        size = self.spec.bytes
        pattern = random.Random(seed).randbytes(min(size, _PATTERN_BYTES))
        ctypes.memmove(self.source, pattern * -(-size // len(pattern)), size)
        ctypes.memset(self.target, UNTOUCHED, self.half)

    def word(self) -> int:
        """Return the word the peer's atomics change."""
        return int.from_bytes(self.view[:8], "little")

    def sums(self) -> dict[str, int]:
        """Return the checksums of what was sent last and of what came last."""
        size = self.spec.bytes
        came = self.view[self._data_at : self._data_at + size]
        return {"sent": zlib.crc32(self.view[:size]), "came": zlib.crc32(came)}

    def close(self) -> None:
        """Destroy everything; the context stays."""
        self.view.release()
        for qp in self.qps:
            qp.close()
        for handle in self._handles:
            handle.close()
        self.send_cq.close()
        self.receive_cq.close()
        if self._channel is not None:
            self._channel.close()
        self.region.close()
        self._pd.close()
