"""A user with two connected queue pairs, somebody who sets faults, and a third who goes on.

The same on a machine in this process and on a kernel process: `settle` waits for a predicate.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from shared.verb_codes import HCA_CONTROL_DEVICE, IOCTL_RESET_HCA, VERB_RESULT
from tests.user_proc.verbs.self_connected import run
from user_proc.faults.fault_control import clear_faults, list_faults, set_fault
from user_proc.faults.fault_values import parse_fault
from user_proc.process import UserProcess
from user_proc.verbs import enums as e
from user_proc.verbs.addr import AH, AHAttr
from user_proc.verbs.completion import WC
from user_proc.verbs.cq import CQ, CompChannel
from user_proc.verbs.device import Context
from user_proc.verbs.mr import MR
from user_proc.verbs.pd import PD
from user_proc.verbs.pyverbs_error import PyverbsRDMAError
from user_proc.verbs.qp import QP, QPAttr, QPCap, QPInitAttr
from user_proc.verbs.wr import SGE, RecvWR, SendWR

ALL_ACCESS = int(
    e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE | e.IBV_ACCESS_REMOTE_READ
    | e.IBV_ACCESS_REMOTE_ATOMIC
)  # fmt: skip
LENGTH = 4096
QKEY = 0x1234
SIGNALED = int(e.IBV_SEND_SIGNALED)


class Pair:
    """Two queue pairs of one context, connected; the first sends, the second receives."""

    def __init__(self, context: Context, settle: Callable[[Callable[[], bool]], None]) -> None:
        self.context = context
        self.settle = settle
        self.pd = PD(context)
        self.mr = MR(self.pd, 2 * LENGTH, ALL_ACCESS)
        self.channel = CompChannel(context)
        self.sent = CQ(context, 64, None, self.channel)
        self.received = CQ(context, 64)
        self.sender = self._make()
        self.receiver = self._make()
        self.connect(self.sender, self.receiver)
        self.connect(self.receiver, self.sender)

    def _make(self, kind: int = e.IBV_QPT_RC) -> QP:
        attr = QPInitAttr(int(kind), scq=self.sent, rcq=self.received, cap=QPCap(32, 32, 1, 1))
        return QP(self.pd, attr)

    @staticmethod
    def connect(one: QP, other: QP, *, timeout: int = 8, retries: int = 3) -> None:
        attr = QPAttr(port_num=1)
        attr.qp_access_flags, attr.path_mtu, attr.dest_qp_num = ALL_ACCESS, 3, other.qp_num
        attr.max_rd_atomic = attr.max_dest_rd_atomic = 4
        attr.timeout, attr.retry_cnt, attr.rnr_retry, attr.min_rnr_timer = timeout, retries, 7, 1
        attr.ah_attr = AHAttr(dlid=1, port_num=1)
        one.to_rts(attr)

    def unreliable(self) -> tuple[QP, QP]:
        """Two connected queue pairs of UC."""
        ends = self._make(e.IBV_QPT_UC), self._make(e.IBV_QPT_UC)
        for one, other in (ends, ends[::-1]):
            self.connect(one, other)
        return ends

    def datagrams(self) -> QP:
        """A queue pair of UD that receives what it sends."""
        qp = self._make(e.IBV_QPT_UD)
        attr = QPAttr(port_num=1)
        attr.qkey = QKEY
        qp.to_rts(attr)
        return qp

    def post(self, opcode: int = e.IBV_WR_SEND, length: int = 64) -> None:
        """Post one request to the sender, and an entry for it if it takes one."""
        if opcode == e.IBV_WR_SEND:
            self.entries(1)
        is_atomic = opcode in (e.IBV_WR_ATOMIC_FETCH_AND_ADD, e.IBV_WR_ATOMIC_CMP_AND_SWP)
        element = SGE(self.mr.buf, 8 if is_atomic else length, self.mr.lkey)
        request = SendWR(5, num_sge=1, sg=[element], opcode=int(opcode), send_flags=SIGNALED)
        if is_atomic:
            request.set_wr_atomic(self.mr.rkey, self.mr.buf + LENGTH, 1, 0)
        elif opcode != e.IBV_WR_SEND:
            request.set_wr_rdma(self.mr.rkey, self.mr.buf + LENGTH)
        self.sender.post_send(request)

    def post_datagram(self, qp: QP) -> None:
        request = SendWR(6, num_sge=1, sg=[SGE(self.mr.buf, 64, self.mr.lkey)], send_flags=SIGNALED)
        request.set_wr_ud(AH(self.pd, attr=AHAttr(dlid=1, port_num=1)), qp.qp_num, QKEY)
        qp.post_send(request)

    def entries(self, count: int, qp: QP | None = None) -> None:
        """Post receive entries."""
        for _ in range(count):
            entry = SGE(self.mr.buf + LENGTH, 256, self.mr.lkey)
            (qp or self.receiver).post_recv(RecvWR(7, 1, [entry]))

    def completions(self, cq: CQ, count: int = 1) -> list[WC]:
        """Wait for so many completions."""
        found: list[WC] = []

        def enough() -> bool:
            found.extend(cq.poll(count - len(found))[1])
            return len(found) >= count

        self.settle(enough)
        return found

    def status(self) -> int:
        """Wait for the end of the request posted last."""
        return int(self.completions(self.sent)[0].status)

    def statuses(self, count: int, opcode: int = e.IBV_WR_SEND) -> list[int]:
        """Do so many requests, one after the other."""
        found = []
        for _ in range(count):
            self.post(opcode)
            found.append(self.status())
        return found


class Scene:
    """Faults are set by one session, seen by another, and a third is left alone."""

    def __init__(
        self,
        connect: Callable[[str], UserProcess],
        settle: Callable[[Callable[[], bool]], None],
        state: Callable[[], dict[str, Any]],
    ) -> None:
        self.settle = settle
        self.state = state
        self.control = connect("control")
        self.other = connect("other")
        self.process = connect("victim")

    def set(self, point: str, **values: Any) -> int:
        return set_fault(self.control, parse_fault(point, values))

    def set_for_user(self, point: str, **values: Any) -> int:
        return self.set(point, session=self.process.session, **values)

    def clear(self) -> int:
        return clear_faults(self.control)

    def hits(self) -> list[int]:
        faults, error = list_faults(self.control)
        assert error == ""
        return [one["hits"] for one in faults]

    @contextmanager
    def context(self, process: UserProcess | None = None) -> Iterator[Context]:
        with Context(name="mthca0", process=process or self.process) as context:
            yield context

    @contextmanager
    def pair(self) -> Iterator[Pair]:
        with self.context() as context:
            yield Pair(context, self.settle)

    def the_other_goes_on(self) -> None:
        """Somebody else lives a whole life of a queue pair meanwhile."""
        with self.context(self.other) as context:
            run(context)

    def figures(self, qp: QP) -> dict[str, Any]:
        """What the HCA counts of a queue pair."""
        figures: dict[str, Any] = self.state()["hca"]["device"]["qps"][str(qp.qp_num)]["counters"]
        return figures

    def close(self) -> None:
        for process in (self.process, self.other, self.control):
            process.close()


def errno_of(act: Callable[[], object]) -> int:
    """What a verb is refused with; 0 if it is not."""
    try:
        act()
    except PyverbsRDMAError as error:
        return error.error_code
    return 0


def reset_hca(scene: Scene) -> None:
    """Have another HCA in the place of the one there is, dead or alive."""
    output = bytearray(VERB_RESULT.size)
    with scene.control.open_device(HCA_CONTROL_DEVICE) as device:
        device.device_io_control(IOCTL_RESET_HCA, None, output)
    assert VERB_RESULT.unpack(output)[0] == 0
