"""What the experiment `contiguity` makes and moves, on a machine whose memory is fragmented.

Figures of the device are counted where they arise: entries of the HCA's translation table,
WRITE_MTT commands of the driver's journal, the HCA's own look-ups of pages, and the time the
latency model asks for, on the virtual clock. `emulator_us` is real time of this program.

Spec: docs/allocation.md; docs/memory-registration.md; docs/latency-models.md.
"""

from collections.abc import Callable, Iterator, Mapping
from statistics import median
from typing import Any, Final, NamedTuple

from kernel_proc.channel_interface.verbs_table import VerbAnswer
from kernel_proc.clients import verb_steps
from kernel_proc.clients.transfer_client import POST_TO_POLL, Pair
from kernel_proc.clients.verbs_connection import open_verbs
from kernel_proc.driver import entry
from kernel_proc.driver.hca_driver import HcaDriver
from kernel_proc.experiments.fragmented_memory import fragment
from kernel_proc.experiments.sample_figures import in_us
from kernel_proc.hca.hca_device import HcaDevice
from kernel_proc.hca.memory_key import MemoryKey
from kernel_proc.hca.translation import Translation
from kernel_proc.hca_abi.command_opcodes import WRITE_MTT
from kernel_proc.machine import Machine
from kernel_proc.scheduling.raised_status import RaisedStatus
from shared import verb_codes as codes
from shared.clock import now_ns
from shared.messages import TransferRun
from shared.verb_messages import CreateCq
from shared.verbs_enums import ibv_access_flags

CQ: Final = "CQ"
QP: Final = "QP"
MR: Final = "MR"

REFUSED: Final = "none to be had"
_CQE: Final = 64
_SEND_SEGMENTS, _RECEIVE_SEGMENTS = 8, 15
_SEND_AND_RECEIVE: Final = 256 + 256  # strides of entries with so many
_MOST_ATTEMPTS: Final = 8
_ATTEMPTS_IN: Final = 16 << 20  # bytes made at a time, at most, if one is not longer
_WRITABLE: Final = int(ibv_access_flags.IBV_ACCESS_LOCAL_WRITE)
_MESSAGES: Final = 16
_KEYS_LOOKED_AT: Final = 512  # far more than a machine of one cell gives out


class Object(NamedTuple):
    """What is made: its kind and the bytes it asks for."""

    kind: str
    length: int


class Made(NamedTuple):
    """One attempt: how its memory lies, and what it took."""

    pieces: int
    depth: int
    lost: int
    mtt_entries: int
    write_mtt: int
    model_ns: int
    real_ns: int


def attempts_for(length: int) -> int:
    """Return how many of a length are made beside each other."""
    return max(2, min(_MOST_ATTEMPTS, _ATTEMPTS_IN // length))


def free_bytes_for(length: int) -> int:
    """Return how much free memory is enough for them, and for what else the driver needs."""
    return attempts_for(length) * length + (16 << 20)


class Maker:
    """A kernel client that makes objects; the first of each kind has been made already."""

    def __init__(self, machine: Machine) -> None:
        self._clock = machine.processor.clock
        self._driver = life_of(machine)
        self._translation = translation_of(machine)
        _, self._table = open_verbs(machine.io)
        self._pd = verb_steps.do(self._table, codes.IOCTL_ALLOC_PD).handle
        self._cq = verb_steps.make_cq(self._table, 1)

    def attempt(self, wanted: Object) -> Made | None:
        """Make one; None if its memory is not to be had. RaisedStatus for any other refusal."""
        buffers, journal = self._driver.buffers, self._driver.channel.journal
        before, mtt_before = buffers.inspect(), _entries_of(self._translation)
        journal.clear()
        model_ns, real_ns = self._clock.now_ns(), now_ns()
        refused = buffers.refused
        answer = self._make(wanted)
        real_ns, model_ns = now_ns() - real_ns, self._clock.now_ns() - model_ns
        if buffers.refused > refused:
            return None
        verb_steps.require(answer, wanted.kind)
        after = buffers.inspect()
        return Made(
            after["pieces"] - before["pieces"],
            after["fallback_depth"],
            after["lost_to_rounding"] - before["lost_to_rounding"],
            _entries_of(self._translation) - mtt_before,
            sum(record.opcode == WRITE_MTT for record in journal),
            model_ns,
            real_ns,
        )

    def _make(self, wanted: Object) -> VerbAnswer:
        table, length = self._table, wanted.length
        if wanted.kind == CQ:
            cqe = max(1, length // _CQE - 1)
            return table.call(codes.IOCTL_CREATE_CQ, CreateCq(cqe, 0, 0, 0, 0, 0))
        if wanted.kind == MR:
            return table.register_memory(self._pd, length, _WRITABLE)
        entries = max(1, length // _SEND_AND_RECEIVE)
        cqs = (self._cq, self._cq)
        request = verb_steps.qp_request(
            verb_steps.RC,
            self._pd,
            cqs,
            max_send_wr=entries,
            max_recv_wr=entries,
            max_send_sge=_SEND_SEGMENTS,
            max_recv_sge=_RECEIVE_SEGMENTS,
        )
        return table.call(codes.IOCTL_CREATE_QP, request)


def _keys(translation: Translation) -> Iterator[MemoryKey]:
    """Give the keys the HCA has."""
    for index in range(_KEYS_LOOKED_AT):
        key = translation.entry(index)
        if key is not None:
            yield key


def _entries_of(translation: Translation) -> int:
    return sum(key.mtt_entries for key in _keys(translation))


def life_of(machine: Machine) -> HcaDriver:
    """Return the driver's state."""
    assert machine.hca is not None
    assert machine.hca.driver is not None
    return entry.extension_of(machine.hca.driver).life


def translation_of(machine: Machine) -> Translation:
    """Return the tables of the HCA, which is an object of this process."""
    hca = machine.hca
    assert hca is not None
    device: HcaDevice = hca.link.device  # type: ignore[union-attr]
    return device.tables.translation


def make_objects(machine: Machine, wanted: Object, percent: int) -> Mapping[str, Any]:
    """Fragment the memory, then make as many objects as may be beside each other."""

    def run() -> Mapping[str, Any]:
        maker = Maker(machine)
        maker.attempt(wanted._replace(length=4096))  # the first of its kind maps tables
        assert machine.hca is not None
        fragment(machine.hca, percent, free_bytes_for(wanted.length))
        attempts = attempts_for(wanted.length)
        return _figures([maker.attempt(wanted) for _ in range(attempts)])

    found: Mapping[str, Any] = machine.processor.run_thread(run)
    return found


def _figures(attempts: list[Made | None]) -> Mapping[str, Any]:
    made = [one for one in attempts if one is not None]
    counted = {"attempts": len(attempts), "made": len(made)}
    if not made:
        return {**counted, "outcome": REFUSED}

    def middle(figure: Callable[[Made], int]) -> float:
        return median(figure(one) for one in made)

    return {
        **counted,
        "pieces": middle(lambda one: one.pieces),
        "fallback_depth": max(one.depth for one in made),
        "lost_bytes": middle(lambda one: one.lost),
        "mtt_entries": middle(lambda one: one.mtt_entries),
        "write_mtt": middle(lambda one: one.write_mtt),
        "model_us": in_us(middle(lambda one: one.model_ns)),
        "emulator_us": in_us(middle(lambda one: one.real_ns)),
    }


def move_messages(machine: Machine, length: int, percent: int) -> Mapping[str, Any]:
    """Write messages from one half of a region to the other; count the HCA's look-ups of pages.

    The HCA looks up nothing in a region that is in a row on its bus, of which it keeps one view.
    """

    def run() -> Mapping[str, Any]:
        assert machine.hca is not None
        _, table = open_verbs(machine.io)
        fragment(machine.hca, percent, free_bytes_for(2 * length))
        plan = TransferRun(POST_TO_POLL, length, _MESSAGES, 1, 16, 1, 0, 1 << 30)
        buffers = life_of(machine).buffers
        try:
            pair = Pair(table, plan, machine.processor.dispatcher.pause)
        except RaisedStatus:
            if not buffers.refused:
                raise
            return {"outcome": REFUSED}
        return _moved(machine, pair)

    found: Mapping[str, Any] = machine.processor.run_thread(run)
    return found


def _moved(machine: Machine, pair: Pair) -> Mapping[str, Any]:
    translation, own = translation_of(machine), life_of(machine).pdn
    # The client's longest region is the one messages are moved in: the driver's own are not its.
    mine = [key for key in _keys(translation) if key.pd != own]
    region = max(mine, key=lambda key: key.length)
    pair.post_and_poll()
    before, samples = translation.page_look_ups, list[int]()
    for _ in range(_MESSAGES):
        began = now_ns()
        pair.post_and_poll()
        samples.append(now_ns() - began)
    looked_up = translation.page_look_ups - before
    pair.check()
    return {
        "messages": _MESSAGES,
        "look_ups": looked_up / _MESSAGES,
        "entries_spanned": region.mtt_entries,
        "emulator_us": in_us(median(samples)),
    }
