"""The HCA's command register: how a command is put into it, and when it is out again.

Parameters first, a fence, then the dword with GO, alone and last. GO is looked at before each
post, since a command in the register must not be overwritten. In event mode commands go through
the command doorbell instead if the HCA has one: a ring of entries, and no look at GO.

Rules: PASSIVE_LEVEL in a thread; posts to the register are serialised by a KMUTEX, those to the
ring by a spin lock, as nobody waits while he holds it.
Spec: Linux mthca_cmd.c (mthca_cmd_post, mthca_cmd_post_dbell); kernel_proc/hca_abi/registers.py.
"""

import errno
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from kernel_proc.driver.refusal import VerbRefused
from kernel_proc.hca_abi import registers as reg
from kernel_proc.scheduling.mutex import Mutex
from kernel_proc.scheduling.spinlock import SpinLock
from kernel_proc.scheduling.wait import delay_execution
from shared.live_words import publish_fence, words32, words64
from shared.verb_reasons import VerbReason

if TYPE_CHECKING:
    from kernel_proc.driver.device_link import DeviceLink
    from kernel_proc.memory.kernel_memory import KernelBuffer
    from kernel_proc.scheduling.processor import Processor

GO_TIMEOUT_NS: Final = 10_000_000_000
_YIELDS: Final = 32  # looks at the go bit before the delays between them have a length
_SHORT_DELAY_NS: Final = 50_000
_LOOKS_EACH: Final = 8  # of a length, since to look costs more than the shortest of them
_DOUBLINGS: Final = 7  # of the length
_CONTROL_INDEX: Final = reg.HCR_CONTROL_OFFSET // 4
_POSTED: Final = reg.COMMANDS_POSTED_OFFSET // 8
_TAKEN: Final = reg.COMMANDS_TAKEN_OFFSET // 8
_WORD_MASK: Final = (1 << 64) - 1


class Command:
    """One command on its way; `out_param` is an address first, then the immediate output."""

    __slots__ = (
        "in_param",
        "inbox",
        "modifier",
        "opcode",
        "opmod",
        "out_param",
        "outbox",
        "status",
        "timeout_ns",
    )

    def __init__(
        self, opcode: int, modifier: int, opmod: int, in_param: int, timeout_ns: int
    ) -> None:
        self.opcode = opcode
        self.modifier = modifier
        self.opmod = opmod
        self.in_param = in_param
        self.out_param = 0
        self.timeout_ns = timeout_ns
        self.inbox: KernelBuffer | None = None
        self.outbox: KernelBuffer | None = None
        self.status = 0

    def mailboxes(self) -> "list[KernelBuffer]":
        """Return the mailboxes it has."""
        return [box for box in (self.inbox, self.outbox) if box is not None]


class CommandRegister:
    """The register of one life of the HCA; `require_alive` refuses when that is over.

    `ring_entries` is the size of the command doorbell's ring, 0 while it is not used.
    """

    def __init__(
        self, processor: "Processor", link: "DeviceLink", require_alive: Callable[[], None]
    ) -> None:
        self._processor = processor
        self._link = link
        self._require_alive = require_alive
        self._registers = link.registers
        self._words = words32(link.registers)
        self._live = words64(link.registers)
        self._lock = Mutex(processor)
        self._ring_lock = SpinLock(processor, "command doorbell")
        self.ring_entries = 0

    def post(self, command: Command, token: int, event_bit: int) -> None:
        """Hand a command over; EAGAIN when the register does not become free."""
        self._lock.wait()
        try:
            if not self.wait_for_go(GO_TIMEOUT_NS):
                raise VerbRefused(errno.EAGAIN, VerbReason.COMMAND_TIMEOUT, 0, command.opcode)
            reg.HCR_PARAMETERS.pack_into(
                self._registers,
                reg.HCR_OFFSET,
                command.in_param,
                command.modifier,
                command.out_param,
                token << reg.HCR_TOKEN_SHIFT,
            )
            publish_fence()
            control = reg.HCR_GO_BIT | event_bit
            control |= command.opmod << reg.HCR_OPMOD_SHIFT | command.opcode
            self._words[_CONTROL_INDEX] = _swap(control)
            self._link.poke()
        finally:
            self._lock.release()

    def post_with_event(self, command: Command, token: int) -> None:
        """Hand over a command that ends with an event; EAGAIN when there is no place for it."""
        if not self.ring_entries:
            self.post(command, token, reg.HCR_E_BIT)
            return
        clock = self._processor.clock
        until_ns = clock.now_ns() + GO_TIMEOUT_NS
        looks = 0
        while not self._ring(command, token):
            self._require_alive()
            if clock.now_ns() >= until_ns:
                raise VerbRefused(errno.EAGAIN, VerbReason.COMMAND_TIMEOUT, 0, command.opcode)
            delay_execution(self._processor, _delay_after(looks))
            looks += 1

    def _ring(self, command: Command, token: int) -> bool:
        """Put a command into the ring; False if it is full."""
        live = self._live
        old_irql = self._ring_lock.acquire()
        posted = live[_POSTED]
        has_room = (posted - live[_TAKEN]) & _WORD_MASK < self.ring_entries
        if has_room:
            reg.COMMAND_RING_ENTRY.pack_into(
                self._registers,
                reg.COMMAND_RING_OFFSET + posted % self.ring_entries * reg.COMMAND_RING_STRIDE,
                command.in_param,
                command.modifier,
                command.out_param,
                token << reg.HCR_TOKEN_SHIFT,
                reg.HCR_GO_BIT | reg.HCR_E_BIT | command.opmod << reg.HCR_OPMOD_SHIFT
                | command.opcode,
            )  # fmt: skip
            publish_fence()
            live[_POSTED] = (posted + 1) & _WORD_MASK
        self._ring_lock.release(old_irql)
        if has_room:
            self._link.poke()
        return has_room

    def wait_for_go(self, limit_ns: int) -> bool:
        """Wait until the HCA has taken or, in polling mode, done the command in the register."""
        clock = self._processor.clock
        until_ns = clock.now_ns() + limit_ns
        looks = 0
        while self._control() & reg.HCR_GO_BIT:
            self._require_alive()
            if clock.now_ns() >= until_ns:
                return False
            delay_execution(self._processor, _delay_after(looks))
            looks += 1
        self._require_alive()
        return True

    def status(self) -> int:
        """Return the status of the polled command that is done."""
        return self._control() >> reg.HCR_STATUS_SHIFT

    def out_param(self) -> int:
        """Return the immediate output of the polled command that is done."""
        (value,) = reg.HCR_OUT_PARAM.unpack_from(self._registers, reg.HCR_OUT_PARAM_OFFSET)
        return int(value)

    def _control(self) -> int:
        return _swap(self._words[_CONTROL_INDEX])


def _delay_after(looks: int) -> int:
    """Return how long to wait for the go bit: not at all at first, then ever longer."""
    if looks < _YIELDS:
        return 0
    return _SHORT_DELAY_NS << min((looks - _YIELDS) // _LOOKS_EACH, _DOUBLINGS)


def _swap(value: int) -> int:
    """Turn a native dword into the big-endian one of the register, or back."""
    if sys.byteorder == "big":
        return value
    return int.from_bytes(value.to_bytes(4, "big"), "little")
