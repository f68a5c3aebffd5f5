"""The HCA's process: python -P -m kernel_proc.hca --control-fd N, started by the kernel only.

It ends with the control socket, or with its parent.
"""

import ctypes
import gc
import os
import select
import signal
import socket
import sys
from typing import TYPE_CHECKING, Final

from shared.stray_devices import KERNEL_OPTION

if TYPE_CHECKING:
    from kernel_proc.hca.control_socket import ControlSocket, Start

_PR_SET_PDEATHSIG: Final = 1
_PR_SET_TIMERSLACK: Final = 29
_TIMER_SLACK_NS: Final = 1000
_CONTROL_OPTION: Final = "--control-fd"
_USAGE: Final = f"python -P -m kernel_proc.hca {_CONTROL_OPTION} N [{KERNEL_OPTION} PID]"
_WRONG_USAGE: Final = 2


def _read_options(words: list[str]) -> tuple[int, int]:
    """Return the control socket's descriptor and the kernel's pid; KeyError or ValueError."""
    options = {_CONTROL_OPTION: "", KERNEL_OPTION: str(os.getppid())}
    for name, value in zip(words[::2], words[1::2], strict=True):
        if name not in options:
            raise KeyError(name)
        options[name] = value
    return int(options[_CONTROL_OPTION]), int(options[KERNEL_OPTION])


def _bind_to_parent(parent: int) -> bool:
    """Die with the parent; False if it has gone already."""
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    prctl(_PR_SET_TIMERSLACK, _TIMER_SLACK_NS, 0, 0, 0)
    return os.getppid() == parent


def _run(control: "ControlSocket", start: "Start", kernel: int) -> None:
    from kernel_proc.hca.hca_device import HcaDevice
    from kernel_proc.hca.process_loop import ProcessLoop
    from kernel_proc.hca_abi.device_settings import decode_settings
    from kernel_proc.hca_abi.registers import REGISTER_PAGE_SIZE
    from shared.clock import now_ns
    from shared.doorbell_layout import STATUS_PAGE_LENGTH
    from shared.segment import map_segment

    registers = memoryview(map_segment(start.registers, REGISTER_PAGE_SIZE))
    status_page = memoryview(map_segment(start.status_page, STATUS_PAGE_LENGTH))
    os.close(start.registers)
    os.close(start.status_page)
    os.set_blocking(start.poke, False)
    os.set_blocking(start.line, False)
    settings = decode_settings(start.settings)

    def raise_line() -> None:
        try:
            os.eventfd_write(start.line, 1)
        except BlockingIOError:  # it is full of raises nobody has taken: it wakes all the same
            return

    with select.epoll() as watch:
        watch.register(control.fileno(), select.EPOLLIN)
        watch.register(start.poke, select.EPOLLIN)
        device = HcaDevice(registers, status_page, settings, now_ns, raise_line)
        control.attach(device, registers, watch)
        device.commands.before_command = control.catch_up
        ProcessLoop(device, control, watch, start.poke, kernel).run()


def main() -> int:
    """Serve the kernel at the other end of the control socket."""
    gc.disable()  # the loop collects, and nothing that is imported is garbage
    try:
        descriptor, kernel = _read_options(sys.argv[1:])
    except (KeyError, ValueError):
        sys.stderr.write(f"usage: {_USAGE}\n")
        return _WRONG_USAGE
    if not _bind_to_parent(kernel):
        return 1
    return _serve(descriptor, kernel)


def _serve(descriptor: int, kernel: int) -> int:
    from kernel_proc.hca.control_socket import ControlEnded, ControlSocket
    from kernel_proc.hca.latency_model import LatencyModelError
    from kernel_proc.hca_abi.device_packets import DevicePacketError
    from kernel_proc.hca_abi.device_settings import HcaSettingsError

    try:
        control = ControlSocket(socket.socket(fileno=descriptor))
        _run(control, control.receive_start(), kernel)
    except ControlEnded:
        return 0
    except (DevicePacketError, HcaSettingsError, LatencyModelError, OSError, ValueError) as error:
        sys.stderr.write(f"the HCA cannot go on: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    code = main()  # what it wrote, it wrote as whole lines, which are not buffered
    # At once: to take every module and table apart would tell nobody anything.
    os._exit(code)
