"""Ranks that do as they like: each is ended, and what became of it is told."""

import os
import signal
import sys
from pathlib import Path

import pytest

from tests.user_proc.groups.conftest import Supervise, commands_of, marked
from user_proc.groups.group_plan import (
    MOST_RANKS,
    ON_FAILURE,
    Group,
    Point,
    Success,
    function_command,
)
from user_proc.groups.supervisor import Supervisor, Verdict

pytestmark = pytest.mark.processes

DEAF = "trap '' TERM; "
FOREVER = "while true; do sleep 1; done"
CHILD = "import signal; from user_proc.groups.rank import Rank; rank = Rank.from_environment(); "


def shell(name: str, text: str, count: int = 1, **more: object) -> Group:
    return Group(name, ("bash", "-c", text), count=count, **more)  # type: ignore[arg-type]  # ditto


def program(name: str, text: str, count: int = 1, **more: object) -> Group:
    """Give a group of a program that has its rank as `rank`."""
    command = (sys.executable, "-P", "-c", CHILD + text)
    return Group(name, command, count=count, **more)  # type: ignore[arg-type]  # ditto


def test_ranks_that_end_well(supervise: Supervise, tmp_path: Path):
    text = "echo $0 {rank} of {size} in {group} at {kernel} $EXTRA; exit {rank}"
    group = shell(
        *("g", text),
        count=2,
        environment={"EXTRA": "x{rank}"},
        success=Success((0, 1)),
        arguments=("begin{{}}",),
    )
    verdict, supervisor = supervise(group)
    assert verdict == Verdict("success")
    assert (tmp_path / "g-1.log").read_text() == "begin{} 1 of 2 in g at none x1\n"
    first, second = (run.result() for run in supervisor.ranks)
    assert (first.state, first.exit_code, second.exit_code) == ("done", 0, 1)
    assert second.max_rss_bytes > 100_000
    assert second.seconds > 0
    assert second.left_behind == 0


def test_the_first_that_fails_ends_the_others(supervise: Supervise):
    verdict, supervisor = supervise(
        shell("good", FOREVER, count=2), shell("bad", "echo why it is; exit 7")
    )
    assert verdict == Verdict("failed", "bad[0]: exit code 7; its last words: why it is")
    assert [run.result().state for run in supervisor.ranks] == ["stopped", "stopped", "failed"]
    assert supervisor.ranks[0].result().killed_by == "SIGTERM"


def test_a_rank_that_ignores_sigterm_is_killed_after_its_grace(supervise: Supervise):
    deaf = "signal.signal(signal.SIGTERM, signal.SIG_IGN); rank.ready(); signal.pause()"
    verdict, supervisor = supervise(
        program("deaf", deaf), shell("bad", "exit 1", after=(Point("deaf", "ready"),)), grace=0.1
    )
    assert verdict.result == "failed"
    assert supervisor.ranks[0].result().killed_by == "SIGKILL"


def test_keep_going_lets_the_others_finish(supervise: Supervise):
    verdict, supervisor = supervise(
        shell("bad", "exit 1"), shell("good", "sleep 0.1"), keep_going=True
    )
    assert verdict.reason == "bad[0]: exit code 1"
    assert [run.result().state for run in supervisor.ranks] == ["failed", "done"]


def test_a_program_that_is_not_there(supervise: Supervise):
    verdict, supervisor = supervise(Group("g", ("no-such-program",)))
    assert verdict.reason == "g[0]: it could not be started: 'no-such-program' is not there"
    assert supervisor.ranks[0].result().exit_code is None


def test_children_of_a_rank_end_with_it_and_daemons_with_the_launch(
    supervise: Supervise, mark: str
):
    seen: list[list[str]] = []

    def look(supervisor: Supervisor) -> None:
        if supervisor.ranks[0].is_over:
            seen.append([text.partition(" ")[2] for text in commands_of(mark)])

    daemon = "setsid bash -c \"trap '' TERM HUP; touch up; sleep 77\" & "
    until_up = "until [ -e up ]; do sleep 0.01; done"
    verdict, supervisor = supervise(
        shell("parent", DEAF + daemon + "sleep 78 & (sleep 79 &); " + until_up),
        shell("other", "sleep 0.4"),
        between=look,
    )
    assert verdict.result == "success"
    assert supervisor.ranks[0].result().left_behind == 2
    for commands in seen:
        assert any("sleep 77" in text for text in commands)  # the daemon, to the end
        assert not {"sleep 78", "sleep 79"} & set(commands)
    assert seen


def test_a_rank_that_is_never_ready_is_the_end_at_the_time_limit(supervise: Supervise):
    verdict, supervisor = supervise(
        shell("server", FOREVER),
        shell("client", "true", after=(Point("server", "ready"),)),
        time_limit=0.4,
    )
    reason = "the time limit of 0.4 s has passed: 'client' still waits for 'server:ready'"
    assert verdict == Verdict("time limit", reason)
    assert [run.result().state for run in supervisor.ranks] == ["stopped", "stopped"]


def test_a_rank_that_ends_before_it_is_ready_leaves_nobody_waiting(supervise: Supervise):
    verdict, _ = supervise(
        shell("server", "true"), shell("client", "true", after=(Point("server", "ready"),))
    )
    reason = "'client' cannot start: server[0] has ended and has not reached 'ready'"
    assert verdict == Verdict("failed", reason)


def test_the_time_limit_of_one_rank(supervise: Supervise):
    verdict, supervisor = supervise(shell("slow", FOREVER, time_limit=0.2), shell("other", FOREVER))
    assert verdict == Verdict("time limit", "slow[0]: the time limit of 0.2 s has passed")
    assert [run.result().state for run in supervisor.ranks] == ["failed", "stopped"]


def test_a_rank_is_started_again_as_often_as_it_may(supervise: Supervise, tmp_path: Path):
    text = "echo x >> count; test $(wc -l < count) -ge 3"
    group = shell("g", text, restart=ON_FAILURE, restarts=2)
    verdict, supervisor = supervise(group)
    assert verdict.result == "success"
    assert supervisor.ranks[0].result().starts == 3
    (tmp_path / "count").unlink()
    verdict, _ = supervise(shell("g", text, restart=ON_FAILURE, restarts=1))
    assert verdict.reason == "g[0]: exit code 1"


def test_a_rank_may_be_killed_where_that_is_expected(supervise: Supervise):
    def kill(supervisor: Supervisor) -> None:
        if supervisor.run_of("g", 0).pid:
            supervisor.signal("g", 0, signal.SIGKILL)

    group = shell("g", FOREVER, success=Success(killed_by=(int(signal.SIGKILL),)))
    verdict, supervisor = supervise(group, between=kill)
    assert verdict.result == "success"
    assert supervisor.ranks[0].result().killed_by == "SIGKILL"
    assert not supervisor.ranks[0].is_alive


def test_a_group_that_runs_until_another_has_ended(supervise: Supervise):
    verdict, supervisor = supervise(
        shell("service", FOREVER, until=Point("work", "ended")),
        shell("work", "true", after=(Point("service", "started"),)),
    )
    assert verdict.result == "success"
    assert [run.result().state for run in supervisor.ranks] == ["done", "done"]


def test_logs_do_not_fill_the_disk(supervise: Supervise, tmp_path: Path):
    # What is written in the instant of the trimming can be lost, so it waits until that is done.
    trimmed = "until grep -aqs dropped /dev/fd/1; do sleep 0.02; done"
    text = f"echo first; head -c 30000000 /dev/zero; {trimmed}; echo; echo last"
    verdict, _ = supervise(shell("g", text), log_limit=100_000)
    assert verdict.result == "success"
    log = (tmp_path / "g-0.log").read_bytes()
    assert len(log) < 200_000
    assert log.startswith(b"first\n")
    assert log.endswith(b"last\n")
    assert b"bytes were dropped here" in log


def test_processors_are_those_of_the_plan(supervise: Supervise, tmp_path: Path):
    cpus = sorted(os.sched_getaffinity(0))
    text = "grep Cpus_allowed_list /proc/self/status"
    sets = tuple((cpu,) for cpu in cpus)
    supervise(shell("g", text, count=len(cpus) + 1, cpus=sets))
    logs = [(tmp_path / f"g-{n}.log").read_text().split()[1] for n in range(len(cpus) + 1)]
    assert logs == [str(cpu) for cpu in (*cpus, cpus[0])]


def test_programs_meet_report_and_are_judged_by_it(supervise: Supervise):
    text = (
        "rank.publish('k', rank.rank); rank.ready();"
        "others=[rank.lookup('g', n, 'k') for n in range(rank.size)];"
        "rank.barrier('go'); rank.report(ops_per_s=sum(others))"
    )
    good = Success(reported={"ops_per_s": 1.0})
    verdict, supervisor = supervise(program("g", text, count=2, success=good))
    assert verdict.result == "success"
    assert supervisor.ranks[1].result().figures == {"ops_per_s": 1.0}
    assert supervisor.samples.taken
    verdict, _ = supervise(program("g", text, success=good))
    assert verdict.reason == "g[0]: it reported ops_per_s = 0, which is less than 1"


def test_ranks_are_sampled_while_they_run(supervise: Supervise):
    def end_when_all_are_sampled(supervisor: Supervisor) -> None:
        samples = supervisor.samples.taken
        if {one["rank"] for one in samples if one["rss_bytes"] > 0} == {0, 1}:
            supervisor.end(Verdict("success"))

    group = shell("g", FOREVER, count=2)
    verdict, supervisor = supervise(group, between=end_when_all_are_sampled, sample_interval=0.1)
    assert verdict == Verdict("success")
    assert {one["group"] for one in supervisor.samples.taken} == {"g"}


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("mine:main", "g[0]: exit code 5"),
        ("mine:nothing", "the module 'mine' has no function 'nothing'"),
        ("nowhere:main", "there is no module 'nowhere' on the path or beside the launch's file"),
        ("mine:fail", "NotLaunched: this program is one of a group"),
    ],
)
def test_functions_are_found_beside_the_file(
    supervise: Supervise, tmp_path: Path, target: str, words: str
):
    text = "import sys\ndef main():\n    print(sys.argv)\n    return 5\n"
    text += "from user_proc.groups.rank import NotLaunched\n"
    text += "def fail():\n    raise NotLaunched('this program is one of a group')\n"
    (tmp_path / "mine.py").write_text(text)
    group = Group("g", function_command(target, tmp_path), ("{rank}",))
    verdict, _ = supervise(group)
    assert verdict.result == "failed"
    assert words in verdict.reason
    if target == "mine:main":
        assert (tmp_path / "g-0.log").read_text() == "['mine:main', '0']\n"


def test_a_guardian_that_is_killed_takes_the_ranks_with_it(supervise: Supervise):
    killed: list[int] = []

    def kill(supervisor: Supervisor) -> None:
        if all(run.pid for run in supervisor.ranks) and not killed:
            killed.append(supervisor._guardian.pid)
            os.kill(killed[0], signal.SIGKILL)

    text = DEAF + "(trap '' TERM; sleep 77) & " + FOREVER
    verdict, supervisor = supervise(shell("g", text, count=2), between=kill)
    assert verdict.result == "failed"
    assert verdict.reason == "the process that guards the ranks was killed, and they with it"
    assert [run.result().state for run in supervisor.ranks] == ["stopped", "stopped"]


def test_an_exception_between_steps_leaves_nothing(supervise: Supervise, mark: str):
    def fail(supervisor: Supervisor) -> None:
        if all(run.pid for run in supervisor.ranks):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        supervise(shell("g", DEAF + FOREVER, count=2), between=fail)
    assert marked(mark) == []  # already, with no time to wait


@pytest.mark.stress
@pytest.mark.parametrize("text", ["true", DEAF + "sleep 1; sleep 77"])
def test_as_many_ranks_as_there_may_be(supervise: Supervise, text: str):
    deaf = text != "true"
    limit = 5.0 if deaf else 50.0
    verdict, supervisor = supervise(shell("g", text, count=MOST_RANKS), time_limit=limit)
    assert verdict.result == ("time limit" if deaf else "success")
    ends = {run.result().killed_by for run in supervisor.ranks}
    assert ends == ({"SIGKILL"} if deaf else {None})
