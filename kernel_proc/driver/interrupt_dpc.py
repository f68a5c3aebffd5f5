"""From the HCA's interrupt line to whom it concerns: ISR, one DPC for each event queue.

The ISR claims the interrupt if the line word moved, looks for a catastrophic error, and queues a
DPC for each queue with entries. A DPC that has drained for 10 ms queues itself again, so that
others get their turn; one that finds its queue drained already is harmless. Since an interrupt may
be lost, the queues are looked at now and then without one.

Rules: ISR at DIRQL, DPCs at DISPATCH_LEVEL; nothing waits.
Spec: WinOFED hw/mthca/kernel/mthca_eq.c (g_max_DPC_time_us); Linux mthca_catas.c.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from kernel_proc.hca_abi import event_entries as eqe
from kernel_proc.hca_abi.registers import (
    CATASTROPHIC_OFFSET,
    CATASTROPHIC_WORDS,
    LINE_OFFSET,
)
from kernel_proc.scheduling.dpc import Dpc
from kernel_proc.scheduling.interrupt import Interrupt
from kernel_proc.scheduling.timer import Timer
from shared.live_words import words64

if TYPE_CHECKING:
    from kernel_proc.driver.event_queue import EventQueue
    from kernel_proc.driver.hca_driver import HcaDriver

DRAIN_LIMIT_NS: Final = 10_000_000
_LOOK_EVERY: Final = 64  # entries between two looks at the clock
_NO_ERROR: Final = bytes(8 * CATASTROPHIC_WORDS)
_QPN_MASK: Final = 0xFF_FFFF

_QP_EVENTS: Final = frozenset(
    {
        eqe.EVENT_PATH_MIGRATED,
        eqe.EVENT_COMMUNICATION_ESTABLISHED,
        eqe.EVENT_SQ_DRAINED,
        eqe.EVENT_WQ_CATASTROPHIC,
        eqe.EVENT_MIGRATION_FAILED,
        eqe.EVENT_INVALID_REQUEST,
        eqe.EVENT_ACCESS_ERROR,
        eqe.EVENT_LAST_WQE_REACHED,
    }
)
_SRQ_EVENTS: Final = frozenset({eqe.EVENT_SRQ_CATASTROPHIC, eqe.EVENT_SRQ_LIMIT})


class InterruptDpc:
    """The interrupt side of one life of the HCA; `on_fatal` is called when it reports its death."""

    def __init__(
        self,
        driver: "HcaDriver",
        queues: Sequence["EventQueue"],
        on_fatal: Callable[[str], object],
    ) -> None:
        processor = driver.processor
        registers = driver.link.registers
        self._driver = driver
        self._queues = list(queues)
        self._on_fatal = on_fatal
        self._line = words64(registers[LINE_OFFSET : LINE_OFFSET + 8])
        self._seen = 0
        self._error = registers[CATASTROPHIC_OFFSET : CATASTROPHIC_OFFSET + len(_NO_ERROR)]
        self._interrupt = Interrupt(processor, self._service)
        self._dpcs = [Dpc(processor, self._drain, queue) for queue in queues]
        self._fatal_dpc = Dpc(processor, self._fatal)
        self._watch = Timer(processor)
        self._watch_dpc = Dpc(processor, lambda *_: self.look())
        self.requeued = 0
        self.unknown = 0
        self.found_by_looking = 0

    def connect(self) -> None:
        """Take interrupts from now on, one that came already at once."""
        self._interrupt.connect()
        self._driver.link.line.connect(self._interrupt)

    def watch(self, period_ns: int) -> None:
        """Look at the queues from time to time, as an interrupt may be lost."""
        self._watch.set(period_ns, period_ns=period_ns, dpc=self._watch_dpc)

    def disconnect(self) -> None:
        """Take no more interrupts; a queued DPC finds nothing."""
        self._driver.link.line.disconnect()
        self._interrupt.disconnect()
        self._watch.cancel()
        for dpc in (*self._dpcs, self._fatal_dpc, self._watch_dpc):
            dpc.remove()

    def _service(self, interrupt: Interrupt, context: Any) -> bool:
        line = self._line[0]
        if line == self._seen:
            return False
        self._seen = line
        self._queue_dpcs()
        return True

    def _queue_dpcs(self) -> int:
        """Queue a DPC for each queue with entries, and for an error; how many that are."""
        count = 0
        if self._error != _NO_ERROR:
            count += self._fatal_dpc.insert()
        for queue, dpc in zip(self._queues, self._dpcs, strict=True):
            if queue.has_entry():
                count += dpc.insert()
        return count

    def look(self) -> None:
        """Take entries whose interrupt has not come; <= DISPATCH_LEVEL (Linux mlx5_cmd_eq_recover).

        Whoever waits for long for the end of a command calls it, and the watch.
        """
        self.found_by_looking += self._queue_dpcs()

    def _drain(self, dpc: Dpc, queue: "EventQueue", *_: Any) -> None:
        clock = self._driver.processor.clock
        until_ns = clock.now_ns() + DRAIN_LIMIT_NS
        looks = _LOOK_EVERY
        while (entry := queue.take()) is not None:
            self._deliver(entry)
            looks -= 1
            if not looks:
                looks = _LOOK_EVERY
                if clock.now_ns() >= until_ns:
                    self.requeued += 1
                    dpc.insert()
                    break
        queue.publish()

    def _deliver(self, entry: bytes) -> None:
        kind, subtype = eqe.EQE_HEAD.unpack_from(entry)
        driver = self._driver
        sinks = driver.event_sinks
        if kind == eqe.EVENT_COMPLETION:
            sinks.completion(*eqe.EQE_COMPLETION.unpack_from(entry))
        elif kind == eqe.EVENT_COMMAND_DONE:
            driver.channel.complete(*eqe.EQE_COMMAND.unpack_from(entry))
        elif kind in _QP_EVENTS:
            (qpn,) = eqe.EQE_QP.unpack_from(entry)
            sinks.qp_event(qpn & _QPN_MASK, kind)
        elif kind in _SRQ_EVENTS:
            (srqn,) = eqe.EQE_SRQ.unpack_from(entry)
            sinks.srq_event(srqn, kind)
        elif kind == eqe.EVENT_CQ_ERROR:
            sinks.cq_error(*eqe.EQE_CQ_ERROR.unpack_from(entry))
        elif kind == eqe.EVENT_PORT_CHANGE:
            (port,) = eqe.EQE_PORT.unpack_from(entry)
            sinks.port_event(port >> eqe.PORT_SHIFT & 3, subtype)
        elif kind == eqe.EVENT_LOCAL_CATASTROPHIC:
            self._on_fatal("it reports a local catastrophic error")
        else:
            self.unknown += 1
            driver.log(f"HCA event of type {kind:#x} is not known; entry {entry.hex()}")

    def _fatal(self, *_: Any) -> None:
        self._on_fatal(f"its error buffer holds {bytes(self._error).hex()}")

    def inspect(self) -> dict[str, Any]:
        """Return the queues, and DPCs that ran out of time."""
        return {
            "requeued": self.requeued,
            "spurious": self._interrupt.spurious,
            "unknown_events": self.unknown,
            "found_by_looking": self.found_by_looking,
            "queues": {queue.number: queue.inspect() for queue in self._queues},
        }
