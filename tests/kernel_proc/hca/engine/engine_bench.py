"""Two users of one HCA on the bench: queue pairs connected to each other, posted to by hand."""

import random
from collections.abc import Sequence

from kernel_proc.hca_abi import command_opcodes as op
from kernel_proc.hca_abi import contexts as abi
from kernel_proc.hca_abi import qp_transitions as table
from kernel_proc.hca_abi import registers as reg
from kernel_proc.hca_abi.device_settings import HcaSettings
from shared import doorbell_layout as bells
from shared.cqe_layout import Cqe
from shared.verbs_enums import ibv_send_flags, ibv_wr_opcode
from shared.wqe_layout import (
    ADDRESS_VECTOR,
    RECEIVE_HEAD,
    SEND_HEAD,
    SEND_SGE_OFFSET,
    SGE,
    AddressVector,
    SendHead,
)
from tests.kernel_proc.hca.hca_bench import PD, RIGHTS, UAR, Bench, BenchCq

SIGNALED = int(ibv_send_flags.IBV_SEND_SIGNALED)
SOLICITED = int(ibv_send_flags.IBV_SEND_SOLICITED)
INLINE = int(ibv_send_flags.IBV_SEND_INLINE)
FENCE = int(ibv_send_flags.IBV_SEND_FENCE)
ALL_RIGHTS = RIGHTS | abi.MPT_FLAG_ATOMIC
ALL_ACCESS = 2 | 4 | 8
XRC = (abi.QPC_TRANSPORT_XRC_SEND, abi.QPC_TRANSPORT_XRC_RECV)
DOMAIN = 5
SRQ_STRIDE = 256
NO_VECTOR = bytes(ADDRESS_VECTOR.size)
Elements = Sequence[tuple[int, int, int]]


def wr(name: str) -> int:
    return int(ibv_wr_opcode[f"IBV_WR_{name}"])


class Region:
    """Registered memory; addresses begin at `start`."""

    def __init__(self, bench: Bench, length: int, start: int = 0x10000, **changes: int) -> None:
        self.bench = bench
        self.start = start
        self.length = length
        arguments = {"flags": ALL_RIGHTS, **changes}
        self.key, self.bus = bench.region(length, start=start, **arguments)

    @property
    def view(self) -> memoryview:
        return self.bench.at(self.bus, self.length)

    def at(self, offset: int = 0, length: int | None = None) -> tuple[int, int, int]:
        """An element of it."""
        return self.start + offset, self.length - offset if length is None else length, self.key

    def fill(self, seed: int = 1) -> bytes:
        data = random.Random(seed).randbytes(self.length)
        self.view[:] = data
        return data


class User:
    """A queue pair with its CQs."""

    def __init__(
        self,
        bench: Bench,
        qpn: int,
        *,
        transport: int = abi.QPC_TRANSPORT_RC,
        entries: int = 64,
        send_stride: int = 512,
        receive_stride: int = 256,
        signal_all: bool = False,
        srqn: int = 0,
        cq_log: int = 8,
        **attributes: int | bytes,
    ) -> None:
        self.bench = bench
        self.qpn = qpn
        self.send_cq: BenchCq = bench.make_cq(cqn=qpn - 1900 + 128, log_size=cq_log)
        self.receive_cq: BenchCq = bench.make_cq(cqn=qpn - 1900 + 256, log_size=cq_log)
        receives = 0 if srqn or transport in XRC else entries
        sends = 0 if transport == abi.QPC_TRANSPORT_XRC_RECV else entries
        self.send_stride, self.receive_stride = send_stride, receive_stride
        self.send_offset = receives * receive_stride
        length = max(1, self.send_offset + sends * send_stride)
        self.key, self.bus = bench.region(length, pd=attributes.get("pd", PD))
        self.mask = entries - 1
        self.entries = entries
        self.send_slot, self.receive_slot = bench.slot(), bench.slot()
        self.sent = self.received = 0
        self.context = abi.QpContext(
            transport=transport,
            flags=(abi.QPC_HAS_SRQ if srqn else 0) | (abi.QPC_SIGNAL_ALL if signal_all else 0),
            local_qpn=qpn,
            pd=PD,
            uar=UAR,
            wqe_lkey=self.key,
            send_offset=self.send_offset,
            send_entries=sends,
            send_stride=send_stride,
            receive_entries=receives,
            receive_stride=receive_stride if receives else 0,
            send_slot=self.send_slot,
            receive_slot=self.receive_slot,
            send_cqn=self.send_cq.cqn,
            receive_cqn=self.receive_cq.cqn,
            srqn=srqn,
            qkey=0x1234,
            mtu=3,
            access=ALL_ACCESS,
            port=1,
            ack_timeout=14,
            retry_count=3,
            rnr_retry=3,
            min_rnr_timer=12,
            sra_max=4,
            rra_max=4,
            next_send_psn=qpn * 100,
            next_receive_psn=0,
            path_port=1,
            path_dlid=1,
        )._replace(**attributes)  # type: ignore[arg-type]  # passed on
        bench.ok(op.RST2INIT_QPEE, modifier=qpn, inbox=self._mailbox())

    def _mailbox(self, options: int = 0) -> bytes:
        return abi.QP_MAILBOX_HEAD.pack(options) + abi.QP_CONTEXT.pack(*self.context)

    def run(self, opcode: int, options: int = 0) -> int:
        return self.bench.run(opcode, modifier=self.qpn, inbox=self._mailbox(options))

    def connect(self, peer: "User", state: int = table.RTS, **changes: int | bytes) -> None:
        """Go to RTR or RTS, connected to a peer."""
        values: dict[str, int | bytes] = {
            "remote_qpn": peer.qpn,
            "next_receive_psn": peer.context.next_send_psn,
            "path_dlid": peer.context.port,
            **changes,
        }
        self.context = self.context._replace(**values)  # type: ignore[arg-type]  # passed on
        assert self.run(op.INIT2RTR_QPEE) == op.CMD_STAT_OK
        if state == table.RTS:
            assert self.run(op.RTR2RTS_QPEE) == op.CMD_STAT_OK

    def put_send(
        self, opcode: int, elements: Elements = (), *, flags: int = SIGNALED, inline: bytes = b"",
        remote: tuple[int, int] = (0, 0), imm: int = 0, compare: int = 0, swap: int = 0,
        vector: bytes = NO_VECTOR, qpn: int = 0, qkey: int = 0x1234, count: int | None = None,
        srqn: int = 0,
    ) -> int:  # fmt: skip
        """Store a send entry; return its position."""
        head = SendHead(
            opcode, flags, len(elements) if count is None else count, imm, *remote, srqn, compare,
            swap, vector, qpn, qkey, len(inline),
        )  # fmt: skip
        place = self.bus + self.send_offset + (self.sent & self.mask) * self.send_stride
        view = self.bench.at(place, self.send_stride)
        SEND_HEAD.pack_into(view, 0, *head)
        body = inline or b"".join(SGE.pack(*element) for element in elements)
        view[SEND_SGE_OFFSET : SEND_SGE_OFFSET + len(body)] = body
        self.sent += 1
        return self.sent - 1

    def ring_send(self) -> None:
        self.bench.ring(bells.RING_SEND, self.send_slot, self.sent)

    def send(self, opcode: int, elements: Elements = (), **arguments: object) -> int:
        position = self.put_send(opcode, elements, **arguments)  # type: ignore[arg-type]
        self.ring_send()
        return position

    def receive(self, elements: Elements = (), count: int | None = None) -> int:
        place = self.bus + (self.received & self.mask) * self.receive_stride
        view = self.bench.at(place, self.receive_stride)
        put_receive(view, elements, count)
        self.received += 1
        self.bench.ring(bells.RING_RECEIVE, self.receive_slot, self.received)
        return self.received - 1

    def sends(self) -> list[Cqe]:
        self.bench.settle()
        return self.send_cq.poll()

    def receives(self) -> list[Cqe]:
        self.bench.settle()
        return self.receive_cq.poll()

    @property
    def device_object(self):  # the device's own
        found = self.bench.tables.qps.find(self.qpn)
        assert found is not None
        return found

    @property
    def state(self) -> int:
        found = self.bench.tables.qps.find(self.qpn)
        return found.state if found is not None else table.RESET


def put_receive(view: memoryview, elements: Elements, count: int | None = None) -> None:
    RECEIVE_HEAD.pack_into(view, 0, len(elements) if count is None else count)
    body = b"".join(SGE.pack(*element) for element in elements)
    view[RECEIVE_HEAD.size : RECEIVE_HEAD.size + len(body)] = body


class SharedQueue:
    """An SRQ and its owner's ring; of XRC with `cq`, where its messages complete."""

    def __init__(
        self, bench: Bench, srqn: int = 70, entries: int = 16, pd: int = PD,
        cq: BenchCq | None = None, xrcd: int = DOMAIN,
    ) -> None:  # fmt: skip
        self.bench, self.srqn, self.entries = bench, srqn, entries
        self.key, self.bus = bench.region(entries * SRQ_STRIDE, pd=pd)
        self.slot = bench.slot()
        self.posted = 0
        self.cq = cq
        context = abi.SrqContext(srqn, pd, UAR, self.key, entries, SRQ_STRIDE, self.slot, 0)
        if cq is not None:
            context = context._replace(flags=abi.SRQ_IS_XRC, xrcd=xrcd, cqn=cq.cqn)
        bench.ok(op.SW2HW_SRQ, modifier=srqn, inbox=abi.SRQ_CONTEXT.pack(*context))

    def post(self, elements: Elements = (), count: int | None = None) -> int:
        place = self.bus + self.posted % self.entries * SRQ_STRIDE
        put_receive(self.bench.at(place, SRQ_STRIDE), elements, count)
        self.posted += 1
        self.bench.ring(bells.RING_SRQ, self.slot, self.posted)
        return self.posted - 1

    def arm(self, limit: int) -> None:
        self.bench.ok(op.ARM_SRQ, modifier=self.srqn, in_param=limit)

    def receives(self) -> list[Cqe]:
        """Completions of an XRC queue."""
        assert self.cq is not None
        self.bench.settle()
        return self.cq.poll()


def vector(dlid: int = 1, port: int = 1, **fields: int | bytes) -> bytes:
    """An address vector."""
    values: dict[str, int | bytes] = {
        "port": port, "sl": 0, "src_path_bits": 0, "static_rate": 0, "dlid": dlid, "is_global": 0,
        "sgid_index": 0, "flow_label": 0, "hop_limit": 0, "traffic_class": 0, "dgid": bytes(16),
        "pd": PD,
        **fields,
    }  # fmt: skip
    return ADDRESS_VECTOR.pack(*AddressVector(**values))  # type: ignore[arg-type]  # passed on


def engine_bench(settings: HcaSettings | None = None) -> Bench:
    """An HCA whose ports are up."""
    bench = Bench(settings).bring_up()
    for port in (1, 2):
        bench.ok(op.INIT_IB, modifier=port, inbox=bytes(64))
    bench.events(reg.ASYNC_EQ)
    assert all(port.state == 4 for port in bench.tables.ports)
    return bench


def xrc_queue(bench: Bench, number: int = 0, **arguments: int) -> SharedQueue:
    """An XRC SRQ with a CQ of its own."""
    cq = bench.make_cq(cqn=400 + number, log_size=6)
    return SharedQueue(bench, 70 + number, cq=cq, **arguments)


def xrc_pair(bench: Bench, number: int = 0, **arguments: object) -> tuple[User, User]:
    """A sender and a target of XRC, connected, in RTS; the target is of DOMAIN."""
    qpn = 2000 + 2 * number
    values: dict[str, object] = {"xrcd": DOMAIN, **arguments}
    one = User(bench, qpn, transport=XRC[0], **values)  # type: ignore[arg-type]  # passed on
    other = User(bench, qpn + 1, transport=XRC[1], **values)  # type: ignore[arg-type]
    one.connect(other)
    other.connect(one)
    return one, other


def pair(bench: Bench, **arguments: object) -> tuple[User, User]:
    """Two connected queue pairs in RTS."""
    one = User(bench, 2000, **arguments)  # type: ignore[arg-type]  # passed on
    other = User(bench, 2001, **arguments)  # type: ignore[arg-type]  # passed on
    one.connect(other)
    other.connect(one)
    return one, other
