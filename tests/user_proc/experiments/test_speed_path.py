"""`speed-path`: nothing is asked of the kernel, until a completion's event is."""

import pytest

from tests.experiment_pages import unexplained
from user_proc.experiments import speed_path
from user_proc.experiments.experiment import Row
from user_proc.experiments.speed_path import OTHER, SPEED, SelfConnected, SpeedPath

pytestmark = pytest.mark.processes
NOTHING = {"irps": 0, "dpcs": 0, "interrupts": 0, "wire_bytes": 0}
POST = "post_send and poll_cq"


def silent(done: int, total: int, text: str) -> None:
    assert 0 <= done < total


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(speed_path._OPERATIONS, True, 5)
        return SpeedPath().run(True, silent)


def test_posting_polling_and_arming_use_no_request(rows: list[Row]):
    assert [row["way"] for row in rows] == [*SPEED, *OTHER]
    for row in rows[: len(SPEED)]:
        assert NOTHING.items() <= row.items()
    assert (
        SpeedPath()
        .verdict(rows)
        .startswith(f"No IRP, DPC, interrupt or byte of a message in 135 operations: {POST} (")
    )


def test_waiting_for_an_event_and_requests_do(rows: list[Row]):
    event, request = rows[len(SPEED) :]
    assert event["interrupts"] > 0 < event["irps"]
    assert request["irps"] == request["dpcs"] == 1
    assert request["wire_bytes"] > 2 * speed_path.BYTES


def test_a_queue_that_is_armed_tells_the_kernel_of_each_completion(
    monkeypatch: pytest.MonkeyPatch,
):
    def armed(end: SelfConnected) -> speed_path.Operation:
        def post_and_poll() -> None:
            end.arm()
            end.post_and_poll()

        return post_and_poll

    monkeypatch.setitem(speed_path._OPERATIONS, True, 5)
    monkeypatch.setattr(speed_path, "OTHER", {})
    experiment = SpeedPath({POST: armed})
    (row,) = experiment.run(True, silent)
    assert row["interrupts"] > 0
    verdict = experiment.verdict([row])
    assert "No IRP" not in verdict
    assert verdict.startswith("Post_send and poll_cq (")


def test_its_page_explains_every_column(rows: list[Row]):
    assert unexplained("speed-path", rows) == set()
