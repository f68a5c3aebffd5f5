"""Rows of the data path whose both ends are a kernel client's: how their blocks are taken.

A user process of the round asks the kernel's benchmark device for a run; the kernel client moves
the messages, times them and compares the payload. The floors are those of user rows.

Rules: a run that the kernel refuses, or in which the payload came wrong, ends the benchmark.
"""

from array import array
from collections.abc import Sequence
from typing import Any, Final

from shared.ioctl_codes import BENCHMARK_DEVICE, IOCTL_TRANSFER_RUN
from shared.message_codec import encode
from shared.messages import TransferRun
from shared.nt_status import STATUS_DEVICE_PROTOCOL_ERROR
from user_proc.bench.speed.speed_blocks import SpeedBlock, Transfer
from user_proc.bench.speed.speed_rows import DISPATCH, KERNEL, SpeedSpec
from user_proc.bench.speed.speed_waiting import SpeedFailed
from user_proc.bench.worker_group import Worker
from user_proc.errors import NtStatusError
from user_proc.process import UserProcess

_WARMUP: Final = 16
_SAMPLE: Final = 8


def transfer_for(spec: SpeedSpec, workers: Sequence[Worker]) -> Transfer:
    """Return how the blocks of a row are taken."""
    return (KernelTransfer if spec.client == KERNEL else Transfer)(spec, workers)


class KernelTransfer(Transfer):
    """A kernel client's row: nothing is made beforehand, as each run makes its own ends."""

    def __init__(self, spec: SpeedSpec, workers: Sequence[Worker]) -> None:
        super().__init__(spec, workers)
        self._row = spec.as_dict()
        self._asker = workers[0]

    def prepare(self) -> None:
        """Make nothing."""

    def release(self) -> None:
        """Leave nothing."""

    def block(self, messages: int) -> SpeedBlock:
        """Take a block of so many messages."""
        taken = self._asker.ask("kernel_block", row=self._row, count=messages)
        return SpeedBlock(array("Q", taken["samples"]), messages, taken["elapsed_ns"])


def take_kernel_block(
    process: UserProcess, spec: SpeedSpec, count: int, spin: int
) -> dict[str, Any]:
    """Have the kernel client do so many messages; return the times of each, if it took them."""
    warmup = _WARMUP if spec.is_latency else spec.depth
    raised = int(spec.irql == DISPATCH)
    plan = TransferRun(spec.op, spec.bytes, count, warmup, spec.depth, spec.chain, raised, spin)
    answer = bytearray((count + 1) * _SAMPLE)
    try:
        with process.open_device(BENCHMARK_DEVICE) as device:
            length = device.device_io_control(IOCTL_TRANSFER_RUN, encode(plan), answer)
    except NtStatusError as error:
        wrong = error.status == STATUS_DEVICE_PROTOCOL_ERROR
        what = "a message failed or came wrong" if wrong else str(error)
        raise SpeedFailed(f"{spec.label()}: {what}") from error
    *samples, elapsed_ns = array("Q", bytes(answer[:length]))
    return {"samples": samples, "elapsed_ns": elapsed_ns}
