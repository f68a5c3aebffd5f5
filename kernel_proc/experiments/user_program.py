"""A user program inside an in-process machine: threads, handles, memory, device controls.

What a program does between two system services runs here in the kernel's part of its thread, so
that nothing of the experiment stands between them; services, waits and APCs are those of any user.

Rules: the constructor, `call`, `run` and `close` from outside the machine, the rest in a thread.
"""

import ctypes
import mmap
import os
from collections.abc import Callable
from typing import Any, Final

from kernel_proc.clients.ib_nt_statuses import nt_status_of
from kernel_proc.driver.context import Context
from kernel_proc.driver.ib_statuses import status_of
from kernel_proc.io_manager.irp_flags import GENERIC_READ, GENERIC_WRITE
from kernel_proc.io_manager.system_services import (
    DeviceControlRequest,
    create_file,
    device_io_control_file,
)
from kernel_proc.machine import Machine
from kernel_proc.scheduling.kthread import KThread, create_user_thread
from kernel_proc.scheduling.raised_status import RaisedStatus
from shared.message_codec import Message, decode, encode
from shared.nt_status import STATUS_SUCCESS
from shared.verb_codes import VERB_NAMES, VERB_OUTPUT_LENGTH, VERB_RESULT

_ACCESS: Final = GENERIC_READ | GENERIC_WRITE


class UserProgram:
    """One process with an arena; `address` is where that begins."""

    def __init__(self, machine: Machine, length: int, name: str = "program") -> None:
        self.machine = machine
        self._session = machine.connect_in_process(name)
        self.process = self._session.session.process
        grant = self._session.allocate_arena(length)
        if grant.status != STATUS_SUCCESS:
            raise RaisedStatus(grant.status, f"an arena of {length} bytes: {grant.reason}")
        self.length = length
        self._mapping = mmap.mmap(grant.descriptor, grant.length)
        os.close(grant.descriptor)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._mapping))
        self._session.arena_mapped(grant.arena_id, self.address)
        for descriptor in self._session.open_doorbells().descriptors:
            os.close(descriptor)
        self.thread = self.new_thread("main")

    def new_thread(self, name: str) -> KThread:
        """Make another thread, which is in user mode."""
        return create_user_thread(self.machine.processor, self.process, name)

    def call(self, routine: Callable[..., Any], *arguments: Any) -> Any:
        """Run a routine on the main thread and the machine until it returns; return its value."""
        values: list[Any] = []
        self.thread.enter_kernel(lambda: values.append(routine(*arguments)))
        self.machine.processor.run_until(lambda: bool(values))
        return values[0]

    def die(self) -> None:
        """Begin what the death of the process begins, and run the machine until it is over."""
        self._session.close()

    # In a thread of the program

    def open(self, device: str, synchronous: bool = False) -> int:
        """Open a device, for overlapped requests unless told otherwise."""
        thread = self._current()
        status, handle = create_file(self.machine.io, thread, device, _ACCESS, synchronous)
        if status != STATUS_SUCCESS:
            raise RaisedStatus(status, f"{device} cannot be opened")
        return handle

    def context(self, handle: int) -> Context:
        """Return what the HCA's driver keeps for a file."""
        context: Context = self.process.handle_table.entries[handle][0].fs_context
        return context

    def control(self, request: DeviceControlRequest) -> int:
        """Send a device control; STATUS_PENDING if it has not ended."""
        return device_io_control_file(self.machine.io, self._current(), request)

    def verb(self, handle: int, code: int, message: Message | None) -> Any:
        """Carry out a verb that does not pend; return its reply."""
        request = DeviceControlRequest(
            handle,
            code,
            encode(message) if message is not None else b"",
            output_length=VERB_OUTPUT_LENGTH,
            output_inline=True,
        )
        status = self.control(request)
        output = request.output or b""
        if status != STATUS_SUCCESS or not output:
            raise RaisedStatus(status, VERB_NAMES[code])
        number, reason, *_ = VERB_RESULT.unpack_from(output)
        if number:
            text = f"{VERB_NAMES[code]} was refused: errno {number}, reason {reason}"
            raise RaisedStatus(nt_status_of(status_of(number, reason)), text)
        rest = output[VERB_RESULT.size :]
        return decode(rest) if rest else None

    def _current(self) -> KThread:
        thread = self.machine.processor.current_thread
        assert thread is not None, "outside any thread"
        return thread
