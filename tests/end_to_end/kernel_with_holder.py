"""A kernel process like any other, with one more driver: run as `python -P THIS_FILE OPTIONS`."""

import sys

from kernel_proc import __main__ as kernel
from kernel_proc.devices import noop
from kernel_proc.io_manager.driver_object import DriverObject
from kernel_proc.io_manager.namespace import IoManager
from tests.holder_driver import Holder

_load_noop = noop.load


def _load(io: IoManager) -> DriverObject:
    Holder(io)
    return _load_noop(io)


noop.load = _load

if __name__ == "__main__":
    sys.exit(kernel.main(sys.argv[1:]))
