"""One rank under supervision: which ends are good ones, its log, its numbers."""

import signal
from pathlib import Path

import pytest

from user_proc.groups.group_plan import ON_FAILURE, Group, Success
from user_proc.groups.guardian_packets import Ended, Spawn, decode_packet, encode_packet
from user_proc.groups.process_samples import MOST_SAMPLES, ProcessSamples
from user_proc.groups.rank_run import RankRun, judge, last_words, signal_name
from user_proc.groups.rank_states import RankEvent, RankState

KILLED = Success((), (int(signal.SIGKILL),))
FAST = Success(reported={"ops_per_s": 10.0})


@pytest.mark.parametrize(
    ("code", "figures", "success", "why"),
    [
        (0, {}, Success(), None),
        (3, {}, Success(), "exit code 3"),
        (3, {}, Success((0, 3)), None),
        (-9, {}, Success(), "killed by SIGKILL"),
        (-9, {}, KILLED, None),
        (0, {}, KILLED, "exit code 0"),
        (0, {}, FAST, "it has not reported ops_per_s"),
        (0, {"ops_per_s": 9.5}, FAST, "it reported ops_per_s = 9.5, which is less than 10"),
        (0, {"ops_per_s": 10.0}, FAST, None),
        (1, {"ops_per_s": 10.0}, FAST, "exit code 1"),
    ],
)
def test_an_end_is_judged(code: int, figures: dict[str, float], success: Success, why: str | None):
    assert judge(code, figures, success) == why


def test_a_signal_without_a_name_has_its_number():
    assert signal_name(int(signal.SIGTERM)) == "SIGTERM"
    assert signal_name(40) == "signal 40"


def run_of(log: Path, group: Group | None = None) -> RankRun:
    run = RankRun(group or Group("g", ("true",)), 0, log)
    run.take(RankEvent.START)
    run.starts, run.begun_ns = 1, 0
    run.take(RankEvent.STARTED)
    return run


def ended(code: int) -> Ended:
    return Ended(1, code, 0.5, 0.25, 1000, 3, 4, 0)


def test_a_rank_begins_again_as_often_as_it_may(tmp_path: Path):
    group = Group("g", ("true",), restart=ON_FAILURE, restarts=1)
    run = run_of(tmp_path / "log", group)
    assert run.end(ended(1), 10, stopping=False)
    assert (run.state, run.reason) == (RankState.STARTING, "exit code 1")
    run.starts += 1
    run.take(RankEvent.STARTED)
    assert not run.end(ended(1), 20, stopping=False)
    assert run.state is RankState.FAILED
    result = run.result()
    assert (result.starts, result.cpu_user_s, result.voluntary_switches) == (2, 1.0, 6)


def test_none_begins_again_while_the_launch_ends(tmp_path: Path):
    run = run_of(tmp_path / "log", Group("g", ("true",), restart=ON_FAILURE, restarts=9))
    assert not run.end(ended(1), 10, stopping=True)
    assert run.state is RankState.FAILED


@pytest.mark.parametrize(
    ("good", "late", "state"),
    [
        (False, False, RankState.STOPPED),
        (True, False, RankState.DONE),
        (False, True, RankState.FAILED),
    ],
)
def test_the_end_of_a_rank_that_was_told_to(
    tmp_path: Path, good: bool, late: bool, state: RankState
):
    run = run_of(tmp_path / "log")
    run.take(RankEvent.STOP)
    run.good_if_stopped, run.timed_out = good, late
    assert not run.end(ended(-15), 10, stopping=True)
    assert run.state is state
    assert run.result().killed_by == "SIGTERM"


def test_a_log_that_grows_keeps_its_beginning_its_end_and_what_comes_then(tmp_path: Path):
    log = tmp_path / "log"
    run = run_of(log)
    run.bound_log(1000)  # there is none yet
    with log.open("ab", buffering=0) as writer:
        writer.write(b"first\n" + b"x" * 5000 + b"\nlast so far\n")
        run.bound_log(6000)
        assert log.stat().st_size == 5019
        run.bound_log(1000)
        writer.write(b"last words\n")
    text = log.read_text()
    assert text.startswith("first\nxxx")
    assert "xxx\n[softhca launch: 4519 bytes were dropped here]\nxxx" in text
    assert text.endswith("xxx\nlast so far\nlast words\n")
    assert len(text) < 1000
    assert last_words(log) == "last words"


def test_last_words_are_short_and_harmless(tmp_path: Path):
    log = tmp_path / "log"
    assert last_words(log) == ""
    log.write_bytes(b"\x1b[2Jgone\xff" + b"y" * 500)
    words = last_words(log)
    assert words.startswith("?[2Jgone")
    assert len(words) == 200


def test_packets_to_the_guardian_come_back_and_have_a_largest_size():
    spawn = Spawn(1, ["true"], {"A": "b"}, "/", "/log", [0])
    assert decode_packet(encode_packet(spawn)) == spawn
    assert decode_packet(encode_packet(ended(-9))) == ended(-9)
    with pytest.raises(ValueError, match="are the most"):
        encode_packet(Spawn(1, ["x" * 200_000], {}, "/", "/log", []))


def test_samples_are_thinned_out_when_there_are_too_many():
    samples = ProcessSamples(0.5, 0)
    ranks = 40
    samples.taken = [
        {"at_s": moment / 2, "rank": rank}
        for moment in range(MOST_SAMPLES // ranks + 1)
        for rank in range(ranks)
    ]
    samples.take([])
    assert len(samples.taken) <= MOST_SAMPLES
    assert {sample["at_s"] for sample in samples.taken} == {
        float(moment) for moment in range(len(samples.taken) // ranks)
    }
    assert samples.interval_ns == 1_000_000_000
