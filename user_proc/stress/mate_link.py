"""The connection of a client with its mate, a client in another process that may die at any time.

The ends are told of each other by who watches both. Each sends, writes, reads back what it wrote
and changes words that only it changes; each checks what the other sends, message by message. When
the mate is gone, what is out may come back with an error, and a new link is offered.

Rules: an error before the mate is known to be gone must be explained within the world's patience.
"""

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from shared.clock import now_ns
from shared.segment import PAGE_SIZE
from shared.verbs_enums import ibv_qp_attr_mask
from user_proc.stress.client_world import World
from user_proc.stress.completion_source import CompletionSource
from user_proc.stress.connection import attributes
from user_proc.stress.connection_end import End, Message
from user_proc.stress.findings import LOST, WRONG, Finding, NothingToDo
from user_proc.stress.ledger import FLUSHED, OK, RETRIES_EXCEEDED
from user_proc.stress.sending import Remote, Request, Sender
from user_proc.stress.shapes import ERR, SEND, SEND_IMM, TAKING_ENTRY, WRITE_IMM, Shape
from user_proc.verbs.completion import WC
from user_proc.verbs.qp import QPAttr

_SHAPE: Final = Shape("rc", depth=16, slot=1024)
_STATE: Final = int(ibv_qp_attr_mask.IBV_QP_STATE)
_HAS_RECEIVED_IMM: Final = 129
_WITH_IMM: Final = 2
_HOW_IT_ENDS: Final = frozenset((OK, RETRIES_EXCEEDED, FLUSHED))

OFFERED, JOINED, UP, GONE = range(4)


class FarPlaces:
    """The mate's region, by its addresses."""

    def __init__(self, base: int) -> None:
        self._base: Final = base

    def at(self, area: int, slot: int) -> int:
        """Return a slot's address."""
        return self._base + PAGE_SIZE + (area * _SHAPE.depth + slot) * _SHAPE.slot

    def word(self, number: int) -> int:
        """Return the address of a word for atomics."""
        return self._base + 8 * number


class FarEnd:
    """What is known here of the mate's end."""

    def __init__(self, told: dict[str, Any]) -> None:
        self.region: Final = FarPlaces(told["base"])
        self.inbound: deque[Message] = deque(maxlen=1)
        self.written: dict[int, tuple[int, int, int]] = {}
        self.words = [0, 0]


class NearEnd(End):
    """This side's end: it expects the mate's messages one by one."""

    def __init__(
        self, world: World, source: CompletionSource, on_error: Callable[[], None]
    ) -> None:
        super().__init__(world, _SHAPE, source, "the link")
        self.mate_stream = 0
        self._expected = 0
        self.note_failure = on_error
        self.receive_statuses = _HOW_IT_ENDS

    def _received(self, slot: int, wc: WC | None) -> None:
        self.receive_slots.append(slot)
        if wc is None or wc.status != OK:
            self.note_failure()
            return
        self._expected += 2
        opcode = SEND_IMM if wc.wc_flags & _WITH_IMM else SEND
        if wc.opcode == _HAS_RECEIVED_IMM:
            opcode = WRITE_IMM
        message = Message(opcode, self.mate_stream, self._expected, wc.byte_len)
        self.judge(message, wc, slot)
        self.post_receives(1)


class MateLink:
    """A client's half of the link; `offer` is what the mate must be told."""

    def __init__(self, world: World, tell: Callable[[dict[str, Any]], None]) -> None:
        self._world = world
        self._tell = tell
        self.state = GONE
        self._failed_ns = 0
        self._end: NearEnd | None = None
        self._sender: Sender | None = None
        self._source: CompletionSource | None = None

    def offer(self) -> None:
        """Make a new end and have the mate told of it."""
        source = CompletionSource(
            self._world, "CQ of the link", 4 * _SHAPE.depth, extended=False, channel=False
        )
        self._source = source
        end = self._end = NearEnd(self._world, source, self._note_error)
        self._failed_ns = 0
        self.state = OFFERED
        self._tell(
            {
                "say": "offer",
                "qpn": end.qp.qp_num,
                "base": end.region.base,
                "rkey": end.region.mr.rkey,
                "stream": end.stream,
            }
        )

    def hear(self, words: dict[str, Any]) -> None:
        """Take what was said about the mate."""
        if words["do"] == "mate gone":
            if self.state != GONE:
                self.state = GONE
                self._let_go()
        elif words["do"] == "mate" and self.state == OFFERED:
            self._join(words)
        elif words["do"] == "mate ready" and self.state == JOINED:
            self.state = UP

    def _join(self, told: dict[str, Any]) -> None:
        end = self._end
        assert end is not None
        end.mate_stream = told["stream"]
        far = FarEnd(told)
        self._sender = Sender(end, far, Remote(told["base"], told["rkey"], told["qpn"]))
        attr = attributes(self._world, _SHAPE, told["qpn"])
        self._world.call("modify_qp to INIT", lambda: end.qp.to_init(attr))
        end.post_receives(_SHAPE.depth)
        self._world.call("modify_qp to RTS", lambda: end.qp.to_rts(attr))
        self.state = JOINED
        self._tell({"say": "joined"})

    def _note_error(self) -> None:
        if not self._failed_ns and self.state != GONE:
            self._failed_ns = now_ns()

    def _let_go(self) -> None:
        """The mate is gone: whatever is out may fail."""
        if self._end is not None:
            self._end.sends.allow(_HOW_IT_ENDS)

    # Work

    def burst(self, requests: list[Request]) -> None:
        """Post requests to the mate; the last one leaves a completion."""
        end, sender = self._end, self._sender
        if self.state != UP or self._failed_ns or end is None or sender is None:
            raise NothingToDo("the link is not up")
        for request in requests:
            self._wait(lambda: bool(end.send_slots))
            if self.state != UP or self._failed_ns:
                return
            length = min(request.length, _SHAPE.slot)
            if request.opcode in TAKING_ENTRY:
                length = max(length, 1)
            wanted = Request(
                request.opcode, length, True, request.inline, request.pieces, request.solicited
            )
            sender.post(wanted)
            end.sends.allow(_HOW_IT_ENDS)

    def settle(self) -> None:
        """Wait until everything sent has come back."""
        end = self._end
        if end is None or self.state in (OFFERED, GONE):
            raise NothingToDo("the link is not up")
        self._wait(lambda: not len(end.sends))

    def _wait(self, reached: Callable[[], bool]) -> None:
        patience_s = self._world.patience_s
        deadline = now_ns() + int(patience_s * 1e9)
        while not reached():
            if self._world.pump():
                deadline = now_ns() + int(patience_s * 1e9)
            elif now_ns() > deadline:
                raise Finding(LOST, f"the link: nothing has come back for {patience_s:g} s")
            else:
                self._world.rest()

    def service(self) -> None:
        """Between two steps: explain errors, and begin anew when the mate is gone."""
        if self.state == GONE:
            self.close()
            self.offer()
        elif self._failed_ns and now_ns() - self._failed_ns > self._world.patience_s * 1e9:
            raise Finding(
                WRONG, "a request to the mate failed, or a receive was flushed, while it lives"
            )

    def close(self) -> None:
        """Destroy this half of the link, taking everything back first."""
        self.state = GONE
        end, source = self._end, self._source
        self._end = self._source = self._sender = None
        if end is None or source is None:
            return
        end.sends.allow(_HOW_IT_ENDS)
        attr = QPAttr(qp_state=ERR)
        if len(end.receives):
            self._world.call("modify_qp to ERR", lambda: end.qp.modify(attr, _STATE))
            self._wait(partial(_is_flushed, end))
        end.close()
        source.close()


def _is_flushed(end: End) -> bool:
    return not len(end.sends) and not len(end.receives)
