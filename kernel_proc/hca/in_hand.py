"""What a queue pair has in hand: the message it is sending, and the one it is receiving.

Neither is ever seen by the other end of a connection. A send entry stays in its queue until it is
complete, and so does a receive entry of the queue pair's own queue: should the queue pair go into
the error state they are flushed with the rest, each once.
"""

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from kernel_proc.hca.packets import Path, Request

if TYPE_CHECKING:
    from kernel_proc.hca.port import Port
    from kernel_proc.hca.srq_table import SharedReceiveQueue
    from kernel_proc.hca_abi.contexts import QpContext

#: Address, length and key of one scatter/gather element; the length is not 0.
Element = tuple[int, int, int]


class Outgoing:
    """The send entry in hand, as it was read, and how far it has come.

    `waiting`: nothing goes on before the deadline, an answer, or the end of a copy. `retries` and
    `rnr_retries` were used since something last went on. `fetched` is the data of the present
    chunk where it is not a view: inline, or copied out of private memory. `answer_due` says that
    a responder may still answer, `chunk` how many bytes the last run of packets was about, `again`
    the same if it is to be sent once more.
    """

    __slots__ = (
        "action",
        "again",
        "answer_due",
        "busy",
        "chunk",
        "compare_add",
        "context",
        "deadline_ns",
        "done",
        "elements",
        "fetched",
        "flags",
        "imm_data",
        "job",
        "length",
        "opcode",
        "port",
        "port_version",
        "record",
        "remote_address",
        "remote_qkey",
        "remote_qpn",
        "retries",
        "rkey",
        "rnr_retries",
        "sent_vector",
        "srqn",
        "swap",
        "timed_out",
        "vector",
        "vector_path",
        "waiting",
    )

    def __init__(self) -> None:
        self.busy = False
        self.waiting = False
        self.answer_due = False
        self.timed_out = False
        self.deadline_ns = 0
        self.chunk = 0
        self.again = 0
        self.action = 0
        self.opcode = 0
        self.flags = 0
        self.elements: list[Element] = []
        self.length = 0
        self.done = 0
        self.imm_data = 0
        self.remote_address = 0
        self.rkey = 0
        self.srqn = 0
        self.compare_add = 0
        self.swap = 0
        self.vector = b""
        self.sent_vector = b""
        self.vector_path: Path | None = None
        self.remote_qpn = 0
        self.remote_qkey = 0
        self.retries = 0
        self.rnr_retries = 0
        self.fetched: memoryview | None = None
        self.job: object | None = None  # a copy, told from others by what it is
        self.context: QpContext | None = None
        self.port: Port | None = None
        self.port_version = -1
        self.record: Request | None = None

    def stop(self) -> None:
        """Have nothing in hand any more; what is late for it is not taken."""
        self.busy = False
        self.waiting = False
        self.answer_due = False
        self.timed_out = False
        self.deadline_ns = 0
        self.fetched = None
        self.again = 0
        self.job = None


class Executed(NamedTuple):
    """A read or an atomic that was executed, should it be asked for again."""

    psn: int
    packets: int
    opcode: int
    address: int
    rkey: int
    original: int


class Incoming:
    """The message that is arriving, and what the responder remembers.

    `opcode` is -1 between messages. `srq` is the shared queue the message is for, of XRC the one it
    names; `srq_position` is that of the entry taken of it, -1 if none is. `executed` are the last
    reads and atomics. `checked` are the path and the context that were found to fit together, under
    the version of the port's tables; `remote_qpn`, `access` and `pd` are of that context, `pd` of
    an XRC target is that of the queue. `backlog` are datagrams that came while one is being stored
    in private memory.
    """

    __slots__ = (
        "access",
        "backlog",
        "checked_context",
        "checked_path",
        "checked_version",
        "elements",
        "established",
        "executed",
        "job",
        "nak_sent",
        "offset",
        "opcode",
        "other_mtu",
        "pd",
        "position",
        "remote_qpn",
        "room",
        "srq",
        "srq_position",
    )

    def __init__(self) -> None:
        self.opcode = -1
        self.offset = 0
        self.elements: list[Element] = []
        self.room = 0
        self.position = 0
        self.srq: SharedReceiveQueue | None = None
        self.srq_position = -1
        self.backlog: deque[Request] = deque()
        self.established = False
        self.nak_sent = False
        self.job: object | None = None  # a copy, told from others by what it is
        self.executed: deque[Executed] = deque()
        self.other_mtu = 0  # where it is not the peer's: the smaller one, as a shift
        self.checked_path: Path | None = None
        self.checked_context: QpContext | None = None
        self.remote_qpn = 0
        self.access = 0
        self.pd = 0
        self.checked_version = -1

    def stop(self) -> None:
        """Forget a message that was cut short; `srq_position` is whoever's who calls."""
        self.opcode = -1
        self.offset = 0
        self.elements = []
        self.srq = None
        self.srq_position = -1
        self.job = None
        self.backlog.clear()
