"""Stages from trace points: no gap, no overlap, and the right name for each part."""

import random
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.trace_points import (
    ANSWER_SENT,
    BUFFERS_READY,
    COMPLETING,
    COPIED_BACK,
    COPYING_BACK,
    DEVICE_QUEUED,
    DPC_ENTERED,
    DRIVER_CALLED,
    DRIVER_RETURNED,
    FAST_IO,
    FINISHED,
    INTERRUPT,
    KERNEL_RECEIVED,
    POINTS,
    SERVICE_ENTERED,
    USER_ANSWERED,
    USER_CALL,
    USER_COPIED,
    USER_SENDING,
    USER_SENT,
    TracePoint,
)
from user_proc.bench.full_plan import BASE
from user_proc.bench.row_figures import Figure
from user_proc.bench.stage_results import StageResult, explains
from user_proc.bench.stage_times import STAGES, stages_of, stages_of_all

HEAD = (USER_CALL, USER_SENDING, KERNEL_RECEIVED, USER_SENT, SERVICE_ENTERED)
TAIL = (ANSWER_SENT, USER_ANSWERED, USER_COPIED)
INLINE = (*HEAD, BUFFERS_READY, DRIVER_CALLED, COMPLETING, COPYING_BACK, COPIED_BACK, FINISHED,
          DRIVER_RETURNED, *TAIL)  # fmt: skip
BY_DPC = (*HEAD, BUFFERS_READY, DRIVER_CALLED, DEVICE_QUEUED, DPC_ENTERED, COMPLETING,
          COPYING_BACK, COPIED_BACK, FINISHED, DRIVER_RETURNED, *TAIL)  # fmt: skip
BY_DEVICE = (*HEAD, BUFFERS_READY, DRIVER_CALLED, DEVICE_QUEUED, DRIVER_RETURNED, INTERRUPT,
             DPC_ENTERED, COMPLETING, COPYING_BACK, COPIED_BACK, FINISHED, *TAIL)  # fmt: skip
FAST = (*HEAD, FAST_IO, *TAIL)
BEGIN = 1_000


def points(names: tuple[str, ...], step: int = 10, begin: int = BEGIN) -> list[TracePoint]:
    """One point every `step` nanoseconds."""
    return [TracePoint(begin + step * (n + 1), name, 7) for n, name in enumerate(names)]


def stages(names: tuple[str, ...]) -> dict[str, int]:
    made = points(names)
    found = stages_of(made, BEGIN, made[-1].ns + 10)
    assert found is not None
    assert sum(found.values()) == made[-1].ns + 10 - BEGIN
    return found


def test_a_request_completed_inline():
    assert stages(INLINE) == {
        "user marshal": 20,  # the call, and the header
        "to the kernel": 10,
        "dispatch": 20,
        "copy in or map": 10,
        "driver": 20,
        "queue": 0,
        "dpc": 0,
        "completion": 30,
        "copy out": 10,
        "to the user": 20,
        "copy to caller": 20,
    }


def test_a_request_completed_by_a_dpc():
    found = stages(BY_DPC)
    assert (found["driver"], found["queue"], found["dpc"]) == (20, 10, 10)
    assert found["completion"] == 30


def test_a_request_completed_by_the_device():
    found = stages(BY_DEVICE)
    assert (found["driver"], found["queue"], found["dpc"]) == (30, 10, 20)
    assert found["completion"] == 20


def test_fast_io_has_no_irp():
    found = stages(FAST)
    assert found["driver"] == 10
    assert all(found[name] == 0 for name in ("copy in or map", "queue", "dpc", "completion"))


def test_what_the_other_process_overtakes_is_left_out():
    late = [point for point in points(BY_DEVICE) if point.point not in (USER_SENT, ANSWER_SENT)]
    late += [TracePoint(late[-1].ns + 500, ANSWER_SENT, 7), TracePoint(BEGIN + 75, USER_SENT, 7)]
    late.sort()
    assert stages_of(late, BEGIN, points(BY_DEVICE)[-1].ns + 10) == stages(BY_DEVICE)


@pytest.mark.parametrize("missing", [USER_SENDING, KERNEL_RECEIVED, SERVICE_ENTERED, USER_ANSWERED])
def test_a_request_with_missing_points_has_no_stages(missing: str):
    left = tuple(name for name in BY_DPC if name != missing)
    assert stages_of(points(left), BEGIN, BEGIN + 10_000) is None


def test_points_outside_of_the_operation_are_not_its_own():
    made = points(INLINE)
    assert stages_of(made, made[0].ns + 1, made[-1].ns) is None
    assert stages_of(made, BEGIN, made[-1].ns - 1) is None
    assert stages_of([], BEGIN, BEGIN + 1) is None


def test_requests_are_matched_with_operations_by_time():
    length = 10 * (len(INLINE) + 1)
    begins = [BEGIN + 1_000 * n for n in range(4)]
    moments = [(begin, begin + length) for begin in begins]
    requests = [points(INLINE, begin=begin) for begin in begins]
    switching = points(INLINE, begin=BEGIN - 900)
    found = stages_of_all([switching, requests[3], requests[0], requests[1]], moments)
    assert [entry is not None for entry in found] == [True, True, False, True]


@given(st.lists(st.sampled_from(POINTS[1:]), max_size=25), st.integers(0, 2**32))
def test_whatever_the_points_the_stages_leave_no_gap(names: list[str], seed: int):
    rng = random.Random(seed)
    made = [TracePoint(BEGIN + n * 10 + rng.randrange(10), name, 1) for n, name in enumerate(names)]
    end = BEGIN + 10 * len(names) + 10
    found = stages_of(made, BEGIN, end)
    if found is not None:
        assert sum(found.values()) == end - BEGIN
        assert all(time >= 0 for time in found.values())
        assert tuple(found) == STAGES


def test_a_sum_is_explained_by_tracing_or_not():
    def gap(value: float) -> Figure:
        return Figure(value, value - 1.0, value + 1.0)

    cost = Figure(8.0, 6.0, 10.0)
    assert explains(gap(0.0), cost)
    assert explains(gap(10.5), cost)
    assert not explains(gap(11.5), cost)
    assert explains(gap(-0.5), cost)
    assert not explains(gap(-1.5), cost)
    assert not explains(gap(10.5), Figure(1.0, -1.0, 3.0))


def test_a_row_s_stages_are_those_of_middle_requests_in_middle_blocks():
    result = StageResult(BASE, 3)
    for block in range(12):
        slow = 10_000 if block % 4 == 0 else 0  # a quarter of the blocks, all of it
        held_up = [1_000_000 if request < 2 else 0 for request in range(10)]
        stages = [dict.fromkeys(STAGES, 100) | {"driver": 1_000 + slow + more} for more in held_up]
        samples = array("Q", [sum(request.values()) for request in stages])
        result.traced.add(samples, sum(samples))
        untraced = array("Q", [sample - 300 for sample in samples])
        result.untraced.add(untraced, sum(untraced))
        result.add_traced([*stages, None])
    found = result.as_dict()
    times = {stage["stage"]: stage["mean_us"] for stage in found["stages"]}
    assert times["driver"] == 1.0
    assert found["sum_us"] == pytest.approx(sum(times.values())) == 2.0
    assert (found["untraced_p50_us"], found["traced_p50_us"]) == (1.7, 2.0)
    assert found["tracing_cost_us"] == found["sum_over_untraced_us"] == {
        "value": 0.3, "low": 0.3, "high": 0.3,
    }  # fmt: skip
    assert found["within_tracing_cost"]
    assert (found["requests"], found["incomplete"]) == (120, 12)
