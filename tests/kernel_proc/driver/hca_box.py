"""A machine with a real HCA stepped in process, the driver, and user processes that are this test.

with HcaBox() as box:
    session = box.session()
    errno, reason, object, detail, reply = verb(session, IOCTL_ALLOC_PD, None)
"""

import ctypes
import mmap
import os
from collections.abc import Callable
from types import TracebackType
from typing import Any, ClassVar, NamedTuple, Protocol

from kernel_proc.driver import entry
from kernel_proc.driver.doorbell_segments import DoorbellTable
from kernel_proc.driver.hca_driver import HcaDriver
from kernel_proc.driver.limits import Profile
from kernel_proc.driver.local_link import LocalLink
from kernel_proc.hca.hca_device import HcaDevice
from kernel_proc.hca_abi import command_opcodes as op
from kernel_proc.hca_abi.device_settings import HcaSettings
from kernel_proc.io_manager.handle_table import HandleTable
from kernel_proc.io_manager.irp_flags import GENERIC_READ, GENERIC_WRITE
from kernel_proc.io_manager.namespace import IoManager
from kernel_proc.io_manager.request import DeviceControlRequest
from kernel_proc.io_manager.system_services import (
    close_handle,
    create_file,
    device_io_control_file,
    run_down_process,
)
from kernel_proc.memory.address_space import AddressSpace
from kernel_proc.memory.arenas import ArenaTable
from kernel_proc.memory.bus import Bus
from kernel_proc.memory.dma_adapter import DmaAdapter
from kernel_proc.memory.kernel_memory import KernelMemory
from kernel_proc.memory.mdl import check_no_locked_pages
from kernel_proc.memory.page_frames import PageFrameAllocator
from kernel_proc.memory.private_memory import PrivateMemory
from kernel_proc.memory.quota import MemoryQuota
from kernel_proc.scheduling.kernel_clock import VirtualClock
from kernel_proc.scheduling.kthread import KThread, create_user_thread
from kernel_proc.scheduling.os_lane import InlineLane
from kernel_proc.scheduling.process import KProcess
from kernel_proc.scheduling.processor import Processor
from shared.message_codec import Message, decode, encode
from shared.nt_status import STATUS_SUCCESS
from shared.verb_codes import HCA_DEVICE, VERB_OUTPUT_LENGTH, VERB_RESULT
from user_proc.memory.private_memory import open_own_memory

ARENA_TOTAL = 1 << 30
#: As the driver's own, but for the event queue that has room for an event of each CQ.
SMALL = Profile(log_cqs=10)


class Answer(NamedTuple):
    """What a verb answered."""

    errno: int
    reason: int
    object: int
    detail: int
    reply: Any


class VerbSession(Protocol):
    """Anything verbs can be sent through, in process or not."""

    def control(self, ioctl: int, data: bytes, output_length: int) -> tuple[int, bytes]:
        """Send a control code; return the status and the output."""


def verb(session: VerbSession, ioctl: int, message: Message | None) -> Answer:
    """Send a verb and decode its answer; it must have been carried out or refused as a verb."""
    data = encode(message) if message is not None else b""
    status, output = session.control(ioctl, data, VERB_OUTPUT_LENGTH)
    assert status == STATUS_SUCCESS, hex(status)
    return answer_of(output)


def answer_of(output: bytes) -> Answer:
    """Decode the output of a verb."""
    fields = VERB_RESULT.unpack_from(output)
    rest = output[VERB_RESULT.size :]
    return Answer(*fields, decode(rest) if rest else None)


def good(session: VerbSession, ioctl: int, message: Message | None = None) -> Any:
    """Send a verb that succeeds; return its reply."""
    answer = verb(session, ioctl, message)
    assert answer[:2] == (0, 0), answer
    return answer.reply


class Call:
    """A system service under way; `value` is set when it has returned."""

    def __init__(self) -> None:
        self.done = False
        self.value: Any = None


class HcaBox:
    """The machine; `commands` are the opcodes executed since it was cleared."""

    made: ClassVar[list["HcaBox"]] = []

    def __init__(
        self,
        *,
        verifier: bool = True,
        settings: HcaSettings | None = None,
        profile: Profile | None = None,
        largest_run: int | None = None,
        allocation: str = "direct",
        wait: bool = True,
        seed: int | None = None,
        polls_commands: bool = False,
    ) -> None:
        self.made.append(self)
        self.lines: list[str] = []
        self.settings = settings or HcaSettings()
        self.processor = processor = Processor(VirtualClock(), verifier=verifier, seed=seed)
        self.io = IoManager(processor)
        self.bus = Bus(PageFrameAllocator(largest_run=largest_run))
        self.memory = KernelMemory(self.bus)
        self.adapter = DmaAdapter(processor, self.bus, self.memory)
        self.link = LocalLink(processor, self._make_device)
        self.bus.attach(self.link)
        self.driver = entry.load(
            self.io,
            self.link,
            self.memory,
            self.lines.append,
            profile or SMALL,
            adapter=self.adapter,
            allocation=allocation,
            polls_commands=polls_commands,
        )
        self.extension = entry.extension_of(self.driver)
        self.doorbells = DoorbellTable(self.link)
        self.sessions: list[HcaSession] = []
        if wait:
            processor.run_until(lambda: bool(self.extension.settled.signal_state))

    def _make_device(
        self, registers: memoryview, status_page: memoryview, raise_line: Callable[[], None]
    ) -> HcaDevice:
        clock = self.processor.clock
        return HcaDevice(registers, status_page, self.settings, clock.now_ns, raise_line)

    @property
    def life(self) -> HcaDriver:
        """The HCA's present life."""
        return self.extension.life

    @property
    def hca(self) -> HcaDevice:
        """The device itself."""
        device = self.link.device
        assert isinstance(device, HcaDevice)
        return device

    def session(self, name: str = "user", *, opened: bool = True) -> "HcaSession":
        """Make a process, by default with the device open."""
        session = HcaSession(self, name)
        self.sessions.append(session)
        if opened:
            session.open()
        return session

    def at_command(self, nth: int, action: Callable[[], int | None]) -> list[int]:
        """Have `action` done before the HCA performs the nth command from now, the first being 0.

        A status it returns becomes the command's, which then has no effect. The list returned
        holds the opcodes seen until `as_usual`.
        """
        interface = self.hca.commands
        perform = type(interface)._perform
        seen: list[int] = []

        def watched(command: Any) -> int:
            seen.append(command.opcode)
            status = action() if len(seen) == nth + 1 else None
            return perform(interface, command) if status is None else status

        interface.__dict__["_perform"] = watched
        return seen

    def hold_back(self, nth: int) -> list[Callable[[], None]]:
        """Keep the completion of the nth command from now; calling what is kept tells it late."""
        interface = self.hca.commands
        tell = type(interface)._tell
        kept: list[Callable[[], None]] = []
        count = 0

        def late(command: Any) -> None:
            nonlocal count
            count += 1
            if count == nth + 1:
                kept.append(lambda: tell(interface, command))
            else:
                tell(interface, command)

        interface.__dict__["_tell"] = late
        return kept

    def as_usual(self) -> None:
        """Undo `at_command` and `hold_back`."""
        for name in ("_perform", "_tell"):
            self.hca.commands.__dict__.pop(name, None)

    def names_of_commands(self, routine: Callable[[], object]) -> list[str]:
        """Run something; return the names of the commands it took, in order."""
        journal = self.life.channel.journal
        journal.clear()
        routine()
        return [op.COMMANDS[entry.opcode].name for entry in journal]

    def commands_of(
        self, session: "HcaSession", ioctl: int, message: Message | None = None
    ) -> tuple[list[str], Any]:
        """Send a verb that succeeds; return the commands it took and its reply."""
        replies: list[Any] = []
        names = self.names_of_commands(lambda: replies.append(good(session, ioctl, message)))
        return names, replies[0]

    def tables(self) -> dict[str, Any]:
        """What a refused verb must leave as it was."""
        state = self.life.inspect()
        icm = {key: state["icm"][key] for key in ("tables", "chunks")}
        locked = [session.process.locked_pages for session in self.sessions]
        keep = {name: state[name] for name in ("numbers", "regions", "buffers", "contexts")}
        hca = {} if self.life.dead else self.hca.tables.translation.inspect()
        return {**keep, "icm": icm, "locked": locked, "keys": hca.get("keys")}

    def close(self) -> None:
        """End every session, unload the driver, and see that nothing is left."""
        for session in self.sessions:
            session.end()
        self.processor.run_thread(entry.unload, self.driver)
        assert self.memory.used == 0, self.memory.inspect()

    def __enter__(self) -> "HcaBox":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if error is None:
                self.close()
        finally:
            self.give_back()

    def give_back(self) -> None:
        """Give descriptors and memory back, whatever happened; again is no error."""
        if self not in self.made:
            return
        self.made.remove(self)
        self.processor.close()
        self.bus.detach(self.link)
        self.link.close()
        self.memory.close()


class HcaSession:
    """One user process and its main thread; its memory is this test's own."""

    def __init__(self, box: HcaBox, name: str) -> None:
        self.box = box
        processor = box.processor
        self.process = KProcess(processor, name, os.getpid())
        self.process.handle_table = HandleTable()
        self.lane = InlineLane(processor)
        self.private = PrivateMemory(*open_own_memory())
        self.space = AddressSpace(self.process, self.lane, private=self.private, bus=box.bus)
        self.process.address_space = self.space
        self.arenas = ArenaTable(self.space, self.lane, MemoryQuota(ARENA_TOTAL), ARENA_TOTAL)
        self.thread = self.new_thread()
        self.handle = 0
        self.ended = False
        self._keep: list[Any] = []
        grant = processor.run_thread(box.doorbells.open, self.process, self.lane)
        assert grant.status == STATUS_SUCCESS, grant
        self.uar = grant.number
        for descriptor in grant.descriptors:
            os.close(descriptor)

    def new_thread(self) -> KThread:
        """Make another thread."""
        return create_user_thread(self.box.processor, self.process, "user thread")

    def arena(self, length: int) -> int:
        """Have an arena mapped; return its address."""
        processor = self.box.processor
        grant = processor.run_thread(self.arenas.allocate, length)
        assert grant.status == STATUS_SUCCESS, grant
        mapping = mmap.mmap(grant.descriptor, grant.length)
        os.close(grant.descriptor)
        base = ctypes.addressof(ctypes.c_char.from_buffer(mapping))
        self._keep.append(mapping)
        mapped = processor.run_thread(self.arenas.mapped, grant.arena_id, base)
        assert mapped == STATUS_SUCCESS
        return base

    def private_buffer(self, length: int) -> int:
        """Return the address of page-aligned private memory."""
        mapping = mmap.mmap(-1, length, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._keep.append(mapping)
        return ctypes.addressof(ctypes.c_char.from_buffer(mapping))

    # System services

    def begin(self, routine: Callable[..., Any], *args: Any, thread: KThread | None = None) -> Call:
        """Enter the kernel; nothing runs yet."""
        call = Call()
        caller = thread or self.thread

        def service() -> None:
            call.value = routine(self.box.io, caller, *args)
            call.done = True

        caller.enter_kernel(service)
        return call

    def service(self, routine: Callable[..., Any], *args: Any) -> Any:
        """Run a system service to its return."""
        call = self.begin(routine, *args)
        self.box.processor.run_until(lambda: call.done)
        return call.value

    def try_open(self) -> tuple[int, int]:
        """Open the device; return status and handle."""
        access = GENERIC_READ | GENERIC_WRITE
        status, handle = self.service(create_file, HCA_DEVICE, access, False)
        return int(status), int(handle)

    def open(self) -> int:
        """Open the device, and use that file from now on."""
        status, self.handle = self.try_open()
        assert status == STATUS_SUCCESS, hex(status)
        return self.handle

    def close(self, handle: int = 0) -> None:
        """Close the file."""
        assert self.service(close_handle, handle or self.handle) == STATUS_SUCCESS

    @property
    def context(self) -> Any:
        """The driver's context of the file in use."""
        return self.process.handle_table.entries[self.handle][0].fs_context

    def request(self, ioctl: int, data: bytes, output_length: int) -> DeviceControlRequest:
        """Make a request on the file in use."""
        return DeviceControlRequest(
            self.handle, ioctl, data, output_length=output_length, output_inline=True
        )

    def begin_verb(
        self, ioctl: int, message: Message | None, thread: KThread | None = None
    ) -> tuple[Call, DeviceControlRequest]:
        """Send a verb and let nothing run yet."""
        data = encode(message) if message is not None else b""
        request = self.request(ioctl, data, VERB_OUTPUT_LENGTH)
        return self.begin(device_io_control_file, request, thread=thread), request

    def control(self, ioctl: int, data: bytes, output_length: int) -> tuple[int, bytes]:
        """Send a control code and run until it is finished."""
        request = self.request(ioctl, data, output_length)
        call = self.begin(device_io_control_file, request)
        self.box.processor.run_until(lambda: call.done and request.finished)
        status = request.iosb_status if request.iosb_written else call.value
        return status, request.output or b""

    def end(self) -> None:
        """End the process as its death would: everything is run down, nothing stays locked."""
        if self.ended:
            return
        self.ended = True
        processor = self.box.processor

        def run_down() -> None:
            run_down_process(self.box.io, self.process)
            check_no_locked_pages(self.process)
            self.box.doorbells.close(self.process)
            self.arenas.close()
            self.space.close()
            self.process.end()

        processor.run_thread(run_down)
