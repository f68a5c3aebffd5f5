"""A kernel process like any other, with one more driver."""

from kernel_proc import __main__ as kernel
from kernel_proc.devices import noop
from kernel_proc.io_manager.driver_object import DriverObject
from kernel_proc.io_manager.namespace import IoManager
from tests.holder_driver import Holder

_load_noop = noop.load


def _load(io: IoManager) -> DriverObject:
    Holder(io)
    return _load_noop(io)


def main(arguments: list[str]) -> int:
    """Run until stopped; return the exit code."""
    noop.load = _load
    return kernel.main(arguments)
