"""A machine with the no-op and benchmark devices, and one user process that is this test itself."""

import ctypes
import mmap
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kernel_proc.clients import benchmark_client
from kernel_proc.devices import noop
from kernel_proc.io_manager.file_object import FileObject
from kernel_proc.io_manager.handle_table import HandleTable
from kernel_proc.io_manager.irp_flags import GENERIC_READ, GENERIC_WRITE
from kernel_proc.io_manager.namespace import IoManager
from kernel_proc.io_manager.request import DeviceControlRequest
from kernel_proc.io_manager.system_services import (
    close_handle,
    create_file,
    device_io_control_file,
)
from kernel_proc.memory.address_space import AddressSpace
from kernel_proc.memory.private_memory import PrivateMemory
from kernel_proc.scheduling.kernel_clock import VirtualClock
from kernel_proc.scheduling.kthread import KThread, create_user_thread
from kernel_proc.scheduling.os_lane import InlineLane
from kernel_proc.scheduling.process import KProcess
from kernel_proc.scheduling.processor import Processor
from shared.nt_status import STATUS_SUCCESS
from user_proc.memory.private_memory import open_own_memory

ARENA_BYTES = 1 << 20


@dataclass
class Call:
    """A system service under way; `value` is set when it has returned."""

    done: bool = False
    value: Any = None


class Buffer:
    """Memory at a real address of this process; `content` reads it."""

    def __init__(self, address: int, length: int) -> None:
        self.address = address
        self.length = length

    def fill(self, data: bytes) -> None:
        ctypes.memmove(self.address, data, len(data))

    @property
    def content(self) -> bytes:
        return ctypes.string_at(self.address, self.length)


class UserBox:
    """The machine, the process and one user thread of it."""

    def __init__(self, *, verifier: bool) -> None:
        self.processor = Processor(VirtualClock(), verifier=verifier)
        self.io = IoManager(self.processor)
        self.noop = noop.load(self.io).devices[0]
        self.benchmark = benchmark_client.load(self.io).devices[0]
        self.process = KProcess(self.processor, "user")
        self.process.handle_table = HandleTable()
        self.private = PrivateMemory(*open_own_memory())
        self.space = AddressSpace(self.process, InlineLane(self.processor), private=self.private)
        self.process.address_space = self.space
        self.thread = self.new_thread()
        self._mapping = mmap.mmap(-1, ARENA_BYTES)
        self._arena_base = ctypes.addressof(ctypes.c_char.from_buffer(self._mapping))
        self._arena_used = 0
        self._keep: list[Any] = []
        view = memoryview(self._mapping)
        assert self.space.add_arena(1, self._arena_base, ARENA_BYTES, view) == STATUS_SUCCESS

    def new_thread(self) -> KThread:
        return create_user_thread(self.processor, self.process, "user thread")

    def buffer(self, memory: str, length: int) -> Buffer:
        """Cut a buffer from the arena, or take private memory."""
        if memory == "arena":
            address = self._arena_base + self._arena_used
            self._arena_used += length
            assert self._arena_used <= ARENA_BYTES
            return Buffer(address, length)
        block = ctypes.create_string_buffer(max(length, 1))
        self._keep.append(block)
        return Buffer(ctypes.addressof(block), length)

    def begin(self, routine: Callable[..., Any], *args: Any, thread: KThread | None = None) -> Call:
        """Enter the kernel; nothing runs yet."""
        call = Call()
        caller = thread or self.thread

        def service() -> None:
            call.value = routine(self.io, caller, *args)
            call.done = True

        caller.enter_kernel(service)
        return call

    def service(
        self, routine: Callable[..., Any], *args: Any, thread: KThread | None = None
    ) -> Any:
        """Run a system service to its return."""
        call = self.begin(routine, *args, thread=thread)
        self.processor.run_until(lambda: call.done)
        return call.value

    def open(self, name: str = "noop", *, synchronous: bool = False) -> int:
        status, handle = self.service(create_file, name, GENERIC_READ | GENERIC_WRITE, synchronous)
        assert status == STATUS_SUCCESS
        return int(handle)

    def close(self, handle: int) -> None:
        assert self.service(close_handle, handle) == STATUS_SUCCESS

    def control(self, request: DeviceControlRequest, thread: KThread | None = None) -> int:
        return int(self.service(device_io_control_file, request, thread=thread))

    def finish(self, request: DeviceControlRequest) -> None:
        """Run until the request is finished."""
        self.processor.run_until(lambda: request.finished)

    def file_of(self, handle: int) -> FileObject:
        file = self.process.handle_table.entries[handle][0]
        assert isinstance(file, FileObject)
        return file

    @property
    def pended(self) -> dict[str, int]:
        """How many requests the no-op driver holds."""
        held = self.noop.device_extension.pended.inspect()
        assert isinstance(held, dict)
        return held

    def dismantle(self) -> None:
        """Check that nothing is left, and give memory back."""
        assert self.pended == {"queued": 0, "commanded": 0}
        assert self.benchmark.device_extension.runs == {}
        assert self.process.pool_charged == 0
        self.space.remove_arena(1)
        self.private.close()


def buffered(
    handle: int, code: int, data: bytes = b"", output_length: int = 0, **more: Any
) -> DeviceControlRequest:
    """A request whose bytes travel inline."""
    return DeviceControlRequest(
        handle, code, data, output_length=output_length, output_inline=True, **more
    )


def by_address(
    handle: int, code: int, source: Buffer | None = None, target: Buffer | None = None
) -> DeviceControlRequest:
    """A request whose bytes stay where they are."""
    return DeviceControlRequest(
        handle,
        code,
        input_address=source.address if source else 0,
        input_length=source.length if source else 0,
        output_address=target.address if target else 0,
        output_length=target.length if target else 0,
    )
