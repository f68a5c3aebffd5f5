"""Experiment `speed-path`: which work of a queue pair uses a request to the kernel, and which none?

A program posts, polls and arms on a queue pair that is connected to itself; beside that it waits
for completions by events, and sends a request for each message, as if posting were one. Counted are
the kernel's IRPs, DPCs and interrupts and the bytes through its door, per operation.

Rules: a kernel of its own; the counters' own requests are taken off.
Spec: "[RFC v2] Kernel Async Verbs" (its last paragraph); docs/rings-and-doorbells.md.
"""

from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any, Final

from shared.clock import now_ns
from shared.ioctl_codes import COMPLETION_DPC, METHOD_BUFFERED, NOOP_DEVICE, noop_code
from shared.messages import Counters
from user_proc.bench.own_kernel import kernel_with
from user_proc.bench.worker_operations import KernelBench
from user_proc.experiments.experiment import Progress, Row
from user_proc.process import UserProcess
from user_proc.verbs import enums as e
from user_proc.verbs.addr import AHAttr
from user_proc.verbs.cq import CQ, CompChannel
from user_proc.verbs.device import Context
from user_proc.verbs.mr import MR
from user_proc.verbs.pd import PD
from user_proc.verbs.qp import QP, QPAttr, QPCap, QPInitAttr
from user_proc.verbs.wr import SGE, RecvWR, SendWR

BYTES: Final = 64
_OPERATIONS: Final = {True: 40, False: 400}  # a block
_BLOCKS: Final = 9
_WARM_UP: Final = 20
_COUNTED: Final = ("irps", "dpcs", "interrupts", "wire_bytes")
_ACCESS: Final = int(e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE)

Operation = Callable[[], object]


class SelfConnected:
    """A queue pair connected to itself, whose CQ has a channel, and a device for requests."""

    def __init__(self, context: Context, process: UserProcess, receives: int) -> None:
        self._device = process.open_device(NOOP_DEVICE)
        self._code = noop_code(METHOD_BUFFERED, COMPLETION_DPC)
        self._input, self._output = bytes(BYTES), bytearray(BYTES)
        pd = PD(context)
        self._mr = mr = MR(pd, 4096, _ACCESS)
        self.channel = CompChannel(context)
        self.cq = CQ(context, 64, None, self.channel)
        cap = QPCap(8, receives, 1, 1)
        self._qp = qp = QP(pd, QPInitAttr(e.IBV_QPT_RC, scq=self.cq, rcq=self.cq, cap=cap))
        attr = QPAttr()
        attr.dest_qp_num, attr.ah_attr = qp.qp_num, AHAttr(dlid=context.query_port(1).lid)
        attr.qp_access_flags = _ACCESS
        attr.max_rd_atomic = attr.max_dest_rd_atomic = 1
        attr.timeout, attr.retry_cnt, attr.rnr_retry, attr.min_rnr_timer = 14, 7, 7, 12
        qp.to_rts(attr)
        sge = SGE(mr.buf, BYTES, mr.lkey)
        self._send = SendWR(
            1, num_sge=1, sg=[sge], opcode=e.IBV_WR_RDMA_WRITE, send_flags=e.IBV_SEND_SIGNALED
        )
        self._send.set_wr_rdma(mr.rkey, mr.buf + BYTES)
        self._receive = RecvWR(2, 1, [sge])

    def post_and_poll(self) -> None:
        """Write once and poll until that is complete."""
        self._qp.post_send(self._send)
        self.take()

    def take(self) -> None:
        """Poll until something is complete."""
        while not (found := self.cq.poll(1)[1]):
            pass
        if found[0].status != e.IBV_WC_SUCCESS:
            raise RuntimeError(f"a write ended with status {found[0].status}")

    def post_receive(self) -> None:
        """Post a receive request, which nothing will use."""
        self._qp.post_recv(self._receive)

    def arm(self) -> None:
        """Arm the CQ, in which nothing completes."""
        self.cq.req_notify()

    def wait_for_the_event(self) -> None:
        """Arm, write, and sleep until the event."""
        self.cq.req_notify()
        self._qp.post_send(self._send)
        self.channel.get_cq_event(self.cq)
        self.cq.ack_events(1)
        self.take()

    def send_a_request(self) -> None:
        """Send a request that a DPC completes, instead of posting."""
        self._device.device_io_control(self._code, self._input, self._output)


Way = Callable[[SelfConnected], Operation]

#: What belongs to the speed path, and what does not.
SPEED: Final[Mapping[str, Way]] = {
    "post_send and poll_cq": lambda end: end.post_and_poll,
    "post_recv": lambda end: end.post_receive,
    "req_notify_cq": lambda end: end.arm,
}
OTHER: Final[Mapping[str, Way]] = {
    "wait for each completion's event": lambda end: end.wait_for_the_event,
    "a request for each message": lambda end: end.send_a_request,
}


class SpeedPath:
    """The experiment; `speed` are the ways that are to use no request."""

    name = "speed-path"
    question = "Which work of a queue pair uses IRPs, and what would it cost if posting did?"

    def __init__(self, speed: Mapping[str, Way] = SPEED) -> None:
        self._ways = {**speed, **OTHER}
        self._speed = tuple(speed)

    def run(self, quick: bool, progress: Progress) -> list[Row]:
        """Take every way on a queue pair of its own, one after the other."""
        rows, count = [], _OPERATIONS[quick]
        with kernel_with({}) as kernel, UserProcess.connect(kernel.name) as process:
            bench = KernelBench(process)
            for done, (name, way) in enumerate(self._ways.items()):
                progress(done, len(self._ways), name)
                with Context(name="mthca0", process=process) as context:
                    end = SelfConnected(context, process, _BLOCKS * count + _WARM_UP)
                    rows.append({"way": name, **_measure(way(end), bench, count)})
            bench.close()
        return rows

    def verdict(self, rows: Sequence[Row]) -> str:
        """Say what uses no request, and what the rest takes."""
        speed = [row for row in rows if row["way"] in self._speed]
        none = [row for row in speed if not any(row[key] for key in _COUNTED)]
        some = [row for row in rows if row not in none]
        parts = []
        if none:
            operations = sum(row["operations"] for row in none)
            parts.append(
                f"No IRP, DPC, interrupt or byte of a message in {operations:,} operations: "
                f"{'; '.join(_timed(row) for row in none)}."
            )
        parts += [
            f"{_timed(row)}: {row['irps']:.2f} IRPs, {row['dpcs']:.2f} DPCs, "
            f"{row['interrupts']:.2f} interrupts, {row['wire_bytes']:.0f} bytes through the door."
            for row in some
        ]
        return " ".join(f"{part[:1].upper()}{part[1:]}" for part in parts)


def _timed(row: Row) -> str:
    return f"{row['way']} ({row['time_us']:.1f} us)"


def _measure(operation: Operation, bench: KernelBench, count: int) -> dict[str, Any]:
    for _ in range(_WARM_UP):
        operation()
    first, before = bench.counters(), bench.counters()
    times = []
    for _ in range(_BLOCKS):
        begin = now_ns()
        for _ in range(count):
            operation()
        times.append((now_ns() - begin) / count)
    after = bench.counters()
    operations = _BLOCKS * count
    return {
        "operations": operations,
        **{key: round(_used(key, first, before, after) / operations, 3) for key in _COUNTED},
        "time_us": round(median(times) / 1_000, 3),
    }


def _used(key: str, first: Counters, before: Counters, after: Counters) -> int:
    """Return what was used between two looks; a look's own part is what two in a row differ by."""
    own = getattr(before, key) - getattr(first, key)
    used: int = getattr(after, key) - getattr(before, key) - own
    return used
