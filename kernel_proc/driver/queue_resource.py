"""What CQs, SRQs and QPs have in common: a number, memory, index words, and events.

Rules: PASSIVE_LEVEL. What is acquired in part is given back by the refusal that stops it. Giving
back may be refused half-way, and is then continued by the next attempt.
Spec: docs/verbs-in-the-driver.md; Linux mthca_cq.c, mthca_qp.c, mthca_srq.c.
"""

import errno
from contextlib import ExitStack
from typing import TYPE_CHECKING, ClassVar, Final, NamedTuple, NoReturn, Protocol

from kernel_proc.driver.event_latch import EventLatch
from kernel_proc.driver.refusal import VerbRefused
from kernel_proc.driver.resources import Resource
from kernel_proc.hca_abi import command_opcodes as op
from shared.verb_reasons import VerbReason
from shared.verbs_enums import ibv_access_flags

if TYPE_CHECKING:
    from kernel_proc.driver.buffer_allocator import QueueBuffer
    from kernel_proc.driver.context import Context
    from kernel_proc.driver.hca_driver import HcaDriver
    from kernel_proc.driver.number_allocator import NumberAllocator
    from kernel_proc.driver.pinned_memory import Region

LOCAL_READ: Final = 0
LOCAL_WRITE: Final = int(ibv_access_flags.IBV_ACCESS_LOCAL_WRITE)


class MemoryNeed(NamedTuple):
    """What a queue's memory must be like."""

    length: int
    alignment: int
    access: int
    pdn: int


class QueueMemory(Protocol):
    """Where the entries of a queue lie."""

    def register(self, driver: "HcaDriver", context: "Context", need: MemoryNeed) -> "Region":
        """Have the HCA reach it, from address 0 of its key on; refuse if it does not fit."""

    def free(self, driver: "HcaDriver") -> None:
        """Give it back; the HCA reaches it no more."""

    def lose(self, driver: "HcaDriver") -> None:
        """Let go of it although the HCA may still reach it."""


class UserMemory:
    """Memory of the user's own, inside one arena: the user frees it."""

    __slots__ = ("_address", "_length")

    def __init__(self, address: int, length: int) -> None:
        self._address = address
        self._length = length

    def register(self, driver: "HcaDriver", context: "Context", need: MemoryNeed) -> "Region":
        """Check and register as much as the queue needs."""
        address = self._address
        if self._length < need.length:
            refuse(VerbReason.BUFFER_TOO_SMALL, self._length, need.length)
        if address % need.alignment:
            refuse(VerbReason.BUFFER_MISALIGNED, address, need.alignment)
        driver.regions.require_arena(context, address, need.length)
        return driver.regions.register_user(
            context, address, need.length, access=need.access, iova=0, pdn=need.pdn
        )

    def free(self, driver: "HcaDriver") -> None:
        """Leave it to the user."""

    def lose(self, driver: "HcaDriver") -> None:
        """Leave it to the user: its key is the driver's and used for nothing else."""


class KernelMemory:
    """Memory the driver allocates for a kernel client, who sees it as `views`."""

    __slots__ = ("buffer",)

    def __init__(self) -> None:
        self.buffer: QueueBuffer | None = None

    def register(self, driver: "HcaDriver", context: "Context", need: MemoryNeed) -> "Region":
        """Allocate and register."""
        self.buffer = driver.buffers.allocate(need.length)
        try:
            return driver.regions.register_kernel(self.buffer, need.pdn, need.access)
        except BaseException as error:
            if isinstance(error, VerbRefused) and error.unanswered:
                self.lose(driver)
            else:
                self.free(driver)
            raise

    def free(self, driver: "HcaDriver") -> None:
        """Give the buffer back."""
        if self.buffer is not None:
            driver.buffers.free(self.buffer)
            self.buffer = None

    def lose(self, driver: "HcaDriver") -> None:
        """Keep it from others until the HCA has stopped."""
        if self.buffer is not None:
            driver.buffers.lose(self.buffer)
            self.buffer = None


class QueueResource(Resource):
    """A queue; `in_hardware` while the HCA has its context.

    `tables` are those of the ICM that have an entry for it. `spares` is memory it has left, or
    never used, whose key could not be taken back yet. `asked_back`: the HCA was told once to give
    the context back, and did not answer.
    """

    tables: ClassVar[tuple[str, ...]] = ()
    reserved_number: ClassVar[int] = -1  # which nobody can have

    __slots__ = (
        "_memory",
        "_numbers",
        "asked_back",
        "in_hardware",
        "latch",
        "number",
        "region",
        "slots",
        "spares",
    )

    latch: EventLatch

    def __init__(self, context: "Context", numbers: "NumberAllocator", memory: QueueMemory) -> None:
        super().__init__(context)
        self._numbers = numbers
        self._memory = memory
        self.in_hardware = False
        self.asked_back = False
        self.number = 0
        self.region: Region | None = None
        self.slots: list[int] = []
        self.spares: list[tuple[Region, QueueMemory]] = []

    @property
    def lkey(self) -> int:
        """Return the key of its memory, 0 without memory."""
        return 0 if self.region is None else self.region.lkey

    @property
    def index(self) -> int:
        """Return its entry in the HCA's tables."""
        return self._numbers.index_of(self.number)

    def note_event(self, event_type: int) -> None:
        """Learn nothing from events; a QP does."""

    def acquire(self, driver: "HcaDriver", slots: int, need: MemoryNeed) -> None:
        """Take everything the queue is made of, or nothing."""
        context = self.context
        context.require_room()
        if context.rings_for is not None and not context.uar:
            refuse(VerbReason.NO_DOORBELLS)
        with ExitStack() as undo:
            self.number = self._take_number()
            undo.callback(self._numbers.free, self.number)
            for table in self.tables:
                driver.icm.get(table, self.index)
                undo.callback(driver.icm.put, table, self.index)
            for _ in range(slots):
                self.slots.append(context.slots.allocate())
                undo.callback(context.slots.free, self.slots[-1])
            if need.length:
                self.region = self._memory.register(driver, context, need)
            undo.pop_all()

    def _take_number(self) -> int:
        numbers, owner = self._numbers, self.context.owner
        number = numbers.take(owner)
        if number != self.reserved_number:
            return number
        numbers.free(number)  # behind all others, and with its next generation
        return numbers.take(owner)

    def abandon(self, driver: "HcaDriver", refusal: VerbRefused) -> None:
        """Undo a creation whose last command failed.

        What was not answered may still be carried out: only the HCA can tell then that it uses
        nothing of the queue, and without that everything stays taken.
        """
        self.in_hardware = refusal.unanswered
        try:
            self.destroy(driver)
        except VerbRefused as another:
            driver.log(f"{self.kind} {self.number:#x} was not taken back: {another}")
            self.lose(driver)

    def take_back(self, driver: "HcaDriver", opcode: int) -> None:
        """Have the HCA give the context back, by the command for its kind.

        If that was not answered once, it may have been done late: then it need not be done again.
        """
        if not self.in_hardware:
            return
        try:
            driver.channel.run(opcode, modifier=self.number)
        except VerbRefused as refusal:
            if not (self.asked_back and refusal.is_status(opcode, op.CMD_STAT_BAD_RES_STATE)):
                self.asked_back |= refusal.unanswered
                raise
        self.in_hardware = False

    def give_back(self, driver: "HcaDriver") -> None:
        """Give everything back; the HCA has no context of the queue any more."""
        if self.region is not None:
            driver.regions.release(self.region)
            self.region = None
        self._memory.free(driver)
        while self.spares:
            region, memory = self.spares[-1]
            driver.regions.release(region)
            memory.free(driver)
            self.spares.pop()
        for table in self.tables:
            driver.icm.put(table, self.index)
        for slot in self.slots:
            self.context.slots.free(slot)
        self.slots.clear()
        self._numbers.free(self.number)

    def move_to(self, driver: "HcaDriver", region: "Region", memory: QueueMemory) -> None:
        """Have other memory from now on, and give back what there was."""
        old, old_memory = self.region, self._memory
        self.region, self._memory = region, memory
        assert old is not None, "a queue that can be moved has memory"
        self.give_up(driver, old, old_memory)

    def give_up(self, driver: "HcaDriver", region: "Region", memory: QueueMemory) -> None:
        """Give back memory the HCA does not use; never refuses: what fails is done at the end."""
        try:
            driver.regions.release(region)
        except VerbRefused as refusal:
            driver.log(f"{self.kind} {self.number:#x}: its spare memory stays: {refusal}")
            self.spares.append((region, memory))
        else:
            memory.free(driver)

    def lose(self, driver: "HcaDriver") -> None:
        """Keep memory and number from others: the HCA may have the queue still."""
        self._memory.lose(driver)
        for _, memory in self.spares:
            memory.lose(driver)

    def attributes(self) -> dict[str, object]:
        """Return what every queue can show."""
        return {"number": self.number, "slots": list(self.slots), **self.latch.inspect()}


def refuse(reason: VerbReason, object: int = 0, detail: int = 0) -> NoReturn:  # noqa: A002
    """Refuse a value with EINVAL."""
    raise VerbRefused(errno.EINVAL, reason, object, detail)
