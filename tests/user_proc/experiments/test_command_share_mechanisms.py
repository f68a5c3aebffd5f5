"""`command-share` measured: one mechanism is changed, and a cell of its verdict is another."""

import re
from collections.abc import Mapping
from functools import partial

import pytest

from kernel_proc.experiments.verb_command_times import CommandTimes
from kernel_proc.hca import latency_model
from user_proc.experiments.command_share import PAIRS, CommandShare, Pairs, measured_overheads
from user_proc.experiments.experiment import Progress, Row
from user_proc.experiments.irp_or_direct import DIRECT, IRP

pytestmark = [pytest.mark.processes, pytest.mark.usefixtures("one_short_round")]

MEANS = (100, 10_000, 1_000_000)
NEVER = re.compile(r"never [^:]*\bquery_qp\b")
BY_A_KERNEL_CLIENT: Pairs = {**PAIRS, "user": (IRP, DIRECT)}


def silent(done: int, total: int, text: str) -> None:
    assert 0 <= done < total


def times(quick: bool, progress: Progress) -> list[Row]:
    return CommandTimes(MEANS).run(quick, progress)


@pytest.fixture(scope="module")
def as_they_are() -> list[Row]:
    return times(True, silent)


@pytest.fixture(scope="module")
def overheads(one_short_round: None) -> Mapping[str, float]:
    return measured_overheads(True, silent)


def found(experiment: CommandShare) -> tuple[Row, str]:
    rows = experiment.run(True, silent)
    return next(row for row in rows if row["verb"] == "query_qp"), experiment.verdict(rows)


def test_an_ioctl_of_a_user_matters_up_to_the_bound_of_a_class(
    as_they_are: list[Row], overheads: Mapping[str, float]
):
    assert 0 < overheads["kernel"] < overheads["user"]
    row, verdict = found(CommandShare(lambda *_: as_they_are, lambda *_: overheads))
    assert (row["user_little_from_us"], row["kernel_little_from_us"]) == ("never", 10_000)
    assert len(NEVER.findall(verdict)) == 1


def test_the_same_request_sent_from_the_kernel_does_not(as_they_are: list[Row]):
    measure = partial(measured_overheads, pairs=BY_A_KERNEL_CLIENT)
    row, verdict = found(CommandShare(lambda *_: as_they_are, measure))
    assert row["user_little_from_us"] == 10_000
    assert not NEVER.search(verdict)


def test_commands_that_may_take_as_long_as_those_of_class_c_outweigh_it(
    monkeypatch: pytest.MonkeyPatch, overheads: Mapping[str, float]
):
    monkeypatch.setitem(latency_model.CLASS_BOUND_NS, "A", latency_model.CLASS_BOUND_NS["C"])
    row, verdict = found(CommandShare(times, lambda *_: overheads))
    assert row["user_little_from_us"] in MEANS[1:]
    assert not NEVER.search(verdict)
