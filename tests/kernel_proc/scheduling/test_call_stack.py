"""The names of driver code on a call stack."""

import functools
import inspect
from collections.abc import Callable

import pytest

from kernel_proc.scheduling import call_stack
from kernel_proc.scheduling.call_stack import calling_driver, routine_name
from kernel_proc.scheduling.kernel_clock import VirtualClock
from kernel_proc.scheduling.processor import Processor


def line() -> int:
    frame = inspect.currentframe()
    assert frame is not None
    assert frame.f_back is not None
    return frame.f_back.f_lineno


def test_the_innermost_is_named_and_its_callers_when_asked_for():
    def inner(depth: int) -> tuple[str, int]:
        return calling_driver(depth), line()

    name, number = inner(1)
    where = "test_the_innermost_is_named_and_its_callers_when_asked_for"
    assert name == f"{where}.<locals>.inner (test_call_stack.py:{number})"
    name, number = inner(2)
    inner_name = f"{where}.<locals>.inner (test_call_stack.py:{number})"
    assert name.startswith(f"{inner_name}, called by {where} (")


def test_kernel_code_and_the_library_are_no_drivers():
    processor = Processor(VirtualClock())
    found: list[str] = []

    def driver() -> None:
        found.append(functools.reduce(lambda a, b: a, [calling_driver()]))

    processor.run_thread(driver)  # under it: the dispatcher and threads of the kernel
    assert found[0].startswith("test_kernel_code_and_the_library_are_no_drivers.<locals>.driver (")


@pytest.mark.parametrize(
    ("path", "is_driver"),
    [("devices/noop.py", True), ("clients/irp_client.py", True), ("io_manager/irp.py", False)],
)
def test_the_kernels_own_drivers_count_as_such(path: str, is_driver: bool):
    assert call_stack._is_driver(call_stack._KERNEL + path) is is_driver


def test_without_a_driver_there_is_no_name(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(call_stack, "_is_driver", lambda _: False)
    assert calling_driver(3) == ""


@pytest.mark.parametrize(
    ("routine", "name"),
    [
        (line, "line (test_call_stack.py:"),
        (Processor.run_thread, "Processor.run_thread (processor.py:"),
        (functools.partial(line), "functools.partial(<function line at"),
        (len, "len"),
    ],
)
def test_routines_have_names(routine: Callable[..., object], name: str):
    assert routine_name(routine).startswith(name)
