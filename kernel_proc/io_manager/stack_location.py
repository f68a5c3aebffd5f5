"""What one driver sees of a request, and where its result goes.

Spec: WDK, IO_STACK_LOCATION; IO_STATUS_BLOCK.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from shared.nt_status import status_name

if TYPE_CHECKING:
    from kernel_proc.io_manager.driver_object import DeviceObject
    from kernel_proc.io_manager.file_object import FileObject
    from kernel_proc.io_manager.irp import Irp

DispatchRoutine = Callable[["DeviceObject", "Irp"], int]
CompletionRoutine = Callable[["DeviceObject | None", "Irp", Any], int]
CancelRoutine = Callable[["DeviceObject | None", "Irp"], object]


class IoStatusBlock:
    """Where a kernel-mode caller finds the result (WDK: IO_STATUS_BLOCK)."""

    __slots__ = ("information", "status")

    def __init__(self, status: int = 0, information: int = 0) -> None:
        self.status = status
        self.information = information

    def __repr__(self) -> str:
        return f"IoStatusBlock({status_name(self.status)}, {self.information})"


class IoStackLocation:
    """One driver's parameters (WDK: IO_STACK_LOCATION).

    The four parameter fields are named after device control; READ and WRITE use the same places
    under the names `length`, `key` and `byte_offset`, CREATE uses `options` and `desired_access`.
    """

    __slots__ = (
        "completion_routine",
        "context",
        "control",
        "device_object",
        "file_object",
        "flags",
        "input_buffer_length",
        "io_control_code",
        "major_function",
        "minor_function",
        "output_buffer_length",
        "type3_input_buffer",
    )

    def __init__(self) -> None:
        self.major_function = 0
        self.minor_function = 0
        self.flags = 0
        self.control = 0
        self.output_buffer_length = 0
        self.input_buffer_length = 0
        self.io_control_code = 0
        self.type3_input_buffer: Any = None
        self.device_object: DeviceObject | None = None
        self.file_object: FileObject | None = None
        self.completion_routine: CompletionRoutine | None = None
        self.context: Any = None

    make_new = __init__

    @property
    def length(self) -> int:
        """Bytes to read or write."""
        return self.output_buffer_length

    @length.setter
    def length(self, value: int) -> None:
        self.output_buffer_length = value

    @property
    def key(self) -> int:
        """Key of a byte-range lock, for READ and WRITE."""
        return self.input_buffer_length

    @key.setter
    def key(self, value: int) -> None:
        self.input_buffer_length = value

    @property
    def byte_offset(self) -> int:
        """Where to read or write."""
        return self.io_control_code

    @byte_offset.setter
    def byte_offset(self, value: int) -> None:
        self.io_control_code = value

    @property
    def options(self) -> int:
        """Create options and disposition, for CREATE."""
        return self.input_buffer_length

    @options.setter
    def options(self, value: int) -> None:
        self.input_buffer_length = value

    @property
    def desired_access(self) -> int:
        """Access asked for, for CREATE."""
        return self.output_buffer_length

    @desired_access.setter
    def desired_access(self, value: int) -> None:
        self.output_buffer_length = value

    def clear(self) -> None:
        """Zero it, device object and major function excepted, as IoCompleteRequest does."""
        self.minor_function = 0
        self.flags = 0
        self.control = 0
        self.output_buffer_length = 0
        self.input_buffer_length = 0
        self.io_control_code = 0
        self.type3_input_buffer = None
        self.file_object = None
        self.completion_routine = None
        self.context = None


class _NoLocation(IoStackLocation):
    """What lies below location 1: nothing. What is written is lost, reading it is an error.

    A driver may fill it as its next location; IoCallDriver then finds that there is none.
    """

    __slots__ = ()

    def __init__(self) -> None:
        """Leave every field without a value."""

    def __setattr__(self, name: str, value: Any) -> None:
        """Lose the value."""


NO_LOCATION: Final = _NoLocation()
