"""A launch's file: what it may say, and one sentence with place and cure for what it may not."""

import os
import signal
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernel_proc.settings import KernelSettings
from shared.fault_messages import Fault
from user_proc.groups.group_plan import (
    Group,
    KernelPlan,
    LaunchPlan,
    PlanError,
    PlannedFault,
    Point,
    Success,
    check_plan,
    escape,
    substitute,
    values_of,
)
from user_proc.groups.plan_file import KERNEL_SETTINGS, parse_plan, read_plan

CPU = min(os.sched_getaffinity(0))
WHOLE = f"""
time_limit = 5
grace = 0.5
sample_interval = 0.2
log_limit = 4096
keep_going = true
[kernel]
verifier = true
hca = false
latency_model = "mine.toml"
latency_factor = 2
hca_profile = "small.toml"
driver = "mailbox.py:driver_entry"
[[fault]]
point = "kernel-slow"
time = "1ms"
lasts = "1s"
process = "client[1]"
after = ["server:ready", "client:started"]
[barriers]
go = ["server", "client"]
[[fault]]
point = "port-down"
port = 1
lasts = "20ms"
[[group]]
name = "server"
run = "program:main"
arguments = ["--size", "{{size}}"]
[[group]]
name = "client"
count = 3
script = "client.py"
after = ["server:ready", "server:open"]
until = "server:ended"
cpus = [{CPU}, [{CPU}]]
time_limit = 1.5
restart = "on-failure"
restarts = 2
environment = {{ WHO = "{{group}} {{rank}}" }}
success = {{ exit_codes = [0, 3], killed_by = ["SIGKILL"], reported = {{ ops_per_s = 10 }} }}
[[group]]
name = "any"
command = ["sleep", "1"]
cpus = "spread"
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "client.py").touch()
    return tmp_path / "launch.toml"


def plan_of(text: str, file: Path) -> LaunchPlan:
    file.write_text(text)
    return read_plan(file)


def test_a_whole_file(file: Path):
    plan = plan_of(WHOLE, file)
    folder = file.resolve().parent
    assert (plan.time_limit, plan.grace, plan.sample_interval) == (5.0, 0.5, 0.2)
    assert (plan.log_limit, plan.keep_going, plan.folder) == (4096, True, folder)
    assert plan.kernel == KernelPlan(
        settings={
            "verifier": True,
            "hca": False,
            "latency_model": str(folder / "mine.toml"),
            "latency_factor": 2.0,
            "hca_profile": str(folder / "small.toml"),
            "driver": [str(folder / "mailbox.py:driver_entry")],
        }
    )
    assert plan.barriers == {"go": ("server", "client")}
    slow = Fault("kernel-slow", process="client[1]", time_ns=10**6, lasts_ns=10**9)
    points = (Point("server", "ready"), Point("client", "started"))
    down = Fault("port-down", port=1, lasts_ns=20 * 10**6)
    assert plan.faults == (PlannedFault(slow, points), PlannedFault(down))
    server, client, other = plan.groups
    assert (server.command[-1], server.arguments) == ("program:main", ("--size", "{size}"))
    assert server.success == Success()
    assert client.command == (escape(sys.executable), "-P", str(folder / "client.py"))
    assert client.after == (Point("server", "ready"), Point("server", "open"))
    assert client.until == Point("server", "ended")
    assert client.cpus == ((CPU,), (CPU,))
    assert (client.count, client.time_limit, client.restart, client.restarts) == (
        *(3, 1.5, "on-failure"),
        2,
    )
    assert client.success == Success((0, 3), (int(signal.SIGKILL),), {"ops_per_s": 10.0})
    assert other.command == ("sleep", "1")
    assert [cpu for (cpu,) in other.cpus] == sorted(os.sched_getaffinity(0))


GROUP = '[[group]]\nname = "a"\ncommand = ["true"]\n'


@pytest.mark.parametrize(
    ("text", "place", "words"),
    [
        ("", "", "group: there is none: add a [[group]]"),
        ("x = [", "", "is no TOML"),
        ("x = 1\n" + GROUP, ":1", "x: there is no such key"),
        ("time_limt = 1\n" + GROUP, ":1", "time_limt: there is no such key: is 'time_limit'"),
        ("time_limit = true\n" + GROUP, ":1", "time_limit: is true or false: give a number"),
        ("time_limit = nan\n" + GROUP, ":1", "time_limit: is nan: give a number between"),
        ("grace = -1\n" + GROUP, ":1", "grace: is -1: give a number between 0 and 3600"),
        ("log_limit = 1e9\n" + GROUP, ":1", "log_limit: is a number: give a whole number"),
        ("group = 1", ":1", "group: is a whole number: give a list"),
        ("group = [1]", ":1", "group[0]: is a whole number: give a table"),
        ("[[group]]\ncommand = 'true'", ":1", "group[0].name: is missing: give a text"),
        ("[[group]]\nname = 'a'", ":1", 'group[0].run: give one of run = "module:function"'),
        (GROUP + "run = 'a:b'", ":3", "group[0].command: give one of"),
        (GROUP + "count = 0", ":4", "group[0].count: is 0: give a number between 1 and 512"),
        (GROUP + "count = '2'", ":4", "group[0].count: is a text in quotes: give a whole number"),
        (GROUP + "colour = 1", ":4", "group[0].colour: there is no such key"),
        (GROUP + GROUP, ":5", "group[1].name: 'a' is taken"),
        (GROUP.replace("'a'", "").replace('"a"', '"a b"'), ":2", "'a b' is no name for a group"),
        (GROUP.replace('"a"', '"kernel"'), ":2", "'kernel' is no name for a group"),
        (GROUP + "after = 'b:ready'", ":4", "group[0].after: there is no group 'b'"),
        (GROUP + "after = 'b'", ":4", "group[0].after: is 'b': write a group and its point"),
        (GROUP + "after = 'a:ready'", ":4", "group[0].after: 'a' cannot wait for itself"),
        (GROUP + "until = 'a:x'", ":4", "group[0].until: 'a' cannot wait for itself"),
        (GROUP + "restart = 'always'", ":4", "give one of never, on-failure"),
        (GROUP + "restart = 'on-failure'", ":1", "group[0].restarts: restart = "),
        (GROUP + "restarts = 2", ":1", "group[0].restart: restart = "),
        (GROUP + "cpus = [9999]", ":4", "group[0].cpus[0]: is 9999: this process may use"),
        (GROUP + "cpus = 'all'", ":4", "group[0].cpus: is 'all': give one of spread"),
        (GROUP + "arguments = ['{rnak}']", ":4", "arguments[0]: '{rnak}' stands for nothing"),
        (GROUP + "arguments = ['{']", ":4", "'{' stands for nothing"),
        (GROUP + 'arguments = ["\\u0000"]', ":4", "holds a zero byte"),
        (GROUP + "[group.environment]\nSOFTHCA_NAME = 'x'", ":5", "the launch's own"),
        (GROUP + "[group.environment]\n'a=b' = 'x'", ":5", "no name of a variable"),
        (GROUP + "[group.environment]\nX = 1", ":5", "environment.X: is a whole number"),
        (GROUP + "[group.success]\nexit_codes = [256]", ":5", "lies between 0 and 255"),
        (GROUP + "[group.success]\nexit_codes = []", ":5", "no end would be a good one"),
        (GROUP + "[group.success]\nkilled_by = ['KILL']", ":5", "'KILL' is no signal"),
        (GROUP + "[group.success.reported]\nx = 'y'", ":5", "reported.x: is a text"),
        (GROUP + "[kernel]\nrunning = 'x'\nverifier = true", ":6", "leave 'running' out"),
        (GROUP + "[kernel]\nrunning = 'x'\nname = 'y'", ":6", "leave 'running' out"),
        (GROUP + "[kernel]\nverifer = true", ":5", "is 'verifier' meant?"),
        (GROUP + "[kernel]\nspin_us = 1.5", ":5", "kernel.spin_us: is a number: give a whole"),
        (GROUP + "[[fault]]\nevery = 2", ":4", "fault[0].point: is missing: give a text"),
        (GROUP + "[[fault]]\npoint = 'ack-lots'", ":4", "fault[0]: there is no fault 'ack-lots'"),
        (GROUP + "[[fault]]\npoint = 'ack-lost'\ntime = '1ms'", ":4", "ack-lost has no time"),
        (GROUP + "[[fault]]\npoint = 'ack-lost'\nafter = 'b:x'", ":6", "there is no group 'b'"),
        (GROUP + "[[fault]]\npoint = 'ack-lost'\nafter = 'a:'", ":6", "'' is no point"),
        (GROUP + "[[fault]]\npoint = 'ack-lost'\n[kernel]\nrunning = 'x'", ":4",
         "fault[0]: is for a kernel of one's own: leave 'kernel.running' out"),
        (GROUP + "[[fault]]\npoint = 'ack-lost'\n" * 65, ":4", "there are 65: 64 are the most"),
        (GROUP + "[barriers]\ngo = ['b']", ":5", "barriers.go: there is no group 'b'"),
        (GROUP + "[barriers]\ngo = 1", ":5", "barriers.go: is a whole number: give a list"),
        (GROUP.replace("command", "script").replace("['true']", "").replace('["true"]', '"no.py"'),
         ":3", "group[0].script: there is no file"),
        (GROUP.replace('command = ["true"]', 'run = "main"'), ":3", 'as "module:function"'),
        (GROUP.replace('["true"]', "[]"), ":3", "group[0].command: is empty"),
        (GROUP + "count = 300\n[[group]]\nname='b'\ncommand='true'\ncount = 300", ":",
         "600 processes altogether: 512 are the most"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_one_sentence_with_its_place(
    file: Path, text: str, place: str, words: str
):
    with pytest.raises(PlanError) as caught:
        plan_of(text, file)
    sentence = str(caught.value)
    assert "\n" not in sentence
    assert words in sentence
    assert sentence.startswith(f"{file}{place}")


def test_groups_that_wait_in_a_circle_are_refused(file: Path):
    text = "".join(
        f'[[group]]\nname = "{name}"\ncommand = ["true"]\nafter = "{after}:ready"\n'
        for name, after in [("a", "b"), ("b", "c"), ("c", "b")]
    )
    with pytest.raises(PlanError, match="in a circle, b -> c -> b"):
        plan_of(text, file)


def test_a_file_that_is_none(file: Path):
    with pytest.raises(PlanError, match=r"launch.toml: cannot be read: No such file"):
        read_plan(file)
    with pytest.raises(PlanError, match="cannot be read"):
        read_plan(file.parent)
    file.write_bytes(b"#" * ((1 << 20) + 1))
    with pytest.raises(PlanError, match="is it the right file"):
        read_plan(file)
    file.write_bytes(b"\xff")
    with pytest.raises(PlanError, match="is no TOML"):
        read_plan(file)


@given(st.binary(max_size=200) | st.text(alphabet="[]{}=\"'group.\n ab1,:#", max_size=80))
def test_any_bytes_are_a_plan_or_a_plan_error(data: bytes | str):
    text = data if isinstance(data, bytes) else data.encode()
    with pytest.raises(PlanError):
        parse_plan(text, Path("some.toml"))  # none of them has a whole group


def test_the_kernel_settings_are_those_of_the_kernel():
    known = set(KernelSettings._fields) - {"name", "log"}
    assert set(KERNEL_SETTINGS) == known


def test_a_plan_made_in_python_is_held_to_the_same_rules():
    group = Group("a", ("true", "{oops}"))
    with pytest.raises(PlanError, match=r"group\[0\].command\[1\]: '{oops}' stands for nothing"):
        check_plan(LaunchPlan((group,)))
    with pytest.raises(PlanError, match=r"group\[0\].restarts"):
        check_plan(LaunchPlan((Group("a", ("true",), restarts=-1),)))
    with pytest.raises(PlanError, match="65536"):
        check_plan(LaunchPlan((Group("a", ("x" * 70_000,)),)))


def test_variables():
    values = values_of(Group("g", ("x",), count=4), 2, "lab")
    assert substitute("{rank}/{size} {group}@{kernel} {{rank}}", values) == "2/4 g@lab {rank}"


@given(st.text())
def test_an_escaped_text_stands_for_itself(text: str):
    assert substitute(escape(text), {}) == text
