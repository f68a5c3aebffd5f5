"""Direct calls: no IRP, a callback at the end, from where and how often."""

import pytest

from kernel_proc.channel_interface.direct_calls import DirectRequest
from kernel_proc.clients.direct_client import query_direct_calls
from kernel_proc.scheduling.irql import DISPATCH_LEVEL, PASSIVE_LEVEL
from shared.ioctl_codes import COMPLETION_DEVICE, COMPLETION_DPC, COMPLETION_INLINE
from shared.nt_status import STATUS_INVALID_PARAMETER, STATUS_PENDING, STATUS_SUCCESS
from tests.kernel_proc.devices.user_box import UserBox

Ends = list[tuple[int, int, int]]


def submit(box: UserBox, completion: int, length: int, result_length: int) -> tuple[int, Ends]:
    """Submit one request in a system thread; return what `submit` returned and each callback."""
    ends: Ends = []
    payload = memoryview(bytes(range(length)))
    result = memoryview(bytearray(result_length))

    def done(request: DirectRequest) -> None:
        ends.append((request.status, request.information, box.processor.irql))

    def body() -> int:
        calls = query_direct_calls(box.noop)
        allocated = box.io.irps_allocated
        status = calls.submit(DirectRequest(completion, payload, result, done))
        assert box.io.irps_allocated == allocated
        return status

    returned = box.processor.run_thread(body)
    box.processor.run_until(lambda: bool(ends))
    if ends[0][0] == STATUS_SUCCESS:
        assert bytes(result[: ends[0][1]]) == bytes(payload[: ends[0][1]])
    return returned, ends


def test_inline_calls_back_at_the_callers_irql(box: UserBox):
    assert submit(box, COMPLETION_INLINE, 64, 64) == (
        STATUS_SUCCESS,
        [(STATUS_SUCCESS, 64, PASSIVE_LEVEL)],
    )


@pytest.mark.parametrize("completion", [COMPLETION_DPC, COMPLETION_DEVICE])
def test_others_call_back_from_a_dpc(box: UserBox, completion: int):
    assert submit(box, completion, 64, 16) == (
        STATUS_PENDING,
        [(STATUS_SUCCESS, 16, DISPATCH_LEVEL)],
    )


def test_an_unknown_completion_is_refused_with_a_callback(box: UserBox):
    returned, ends = submit(box, 3, 0, 0)
    assert returned == STATUS_INVALID_PARAMETER
    assert [end[0] for end in ends] == [STATUS_INVALID_PARAMETER]


def test_one_dpc_ends_all_requests_queued_at_dispatch(box: UserBox):
    ended: list[int] = []

    def body() -> None:
        calls = query_direct_calls(box.noop)
        dpcs = box.processor.dpcs
        old = box.processor.raise_irql(DISPATCH_LEVEL)
        for number in range(16):
            calls.submit(
                DirectRequest(
                    COMPLETION_DPC, None, None, lambda done: ended.append(done.context), number
                )
            )
        assert ended == []
        box.processor.lower_irql(old)
        assert box.processor.dpcs - dpcs == 1

    box.processor.run_thread(body)
    assert ended == list(range(16))


def test_direct_calls_and_irps_share_the_hardware(box: UserBox):
    from kernel_proc.clients.direct_client import DirectCall
    from kernel_proc.clients.irp_client import HandBuiltIrp

    interrupts = box.processor.interrupts

    def body() -> None:
        operations = DirectCall(box.noop, 2, 8), HandBuiltIrp(box.noop, 2, 8)
        for operation in operations * 3:
            operation()

    box.processor.run_thread(body)
    assert box.processor.interrupts - interrupts == 6
