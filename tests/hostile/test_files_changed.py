"""Files that people write, nearly right: each is read, or refused in a sentence."""

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernel_proc.hca.latency_model import LatencyModel, LatencyModelError
from kernel_proc.hca_abi.device_settings import HcaSettingsError
from kernel_proc.hca_profile import read_profile
from tests.hostile.recipes import kept
from user_proc.faults.fault_file import read_fault_file
from user_proc.faults.fault_values import FaultFileError
from user_proc.groups.group_plan import PlanError
from user_proc.groups.plan_file import read_plan

EXAMPLES = 40


class Kind(NamedTuple):
    """A kind of file: how it is read, what is raised, and one that is right."""

    read: Callable[[Path], object]
    error: type[Exception]
    text: str


KINDS: dict[str, Kind] = {
    "launch": Kind(
        read_plan, PlanError,
        'time_limit = 60.0\n[kernel]\nverifier = true\nmax_sessions = 8\n[[group]]\nname = "one"\n'
        'command = ["sleep", "1"]\ncount = 2\n[group.environment]\nKEY = "value"\n'
        '[barriers]\nall = ["one"]\n',
    ),
    "faults": Kind(
        read_fault_file, FaultFileError,
        '[[fault]]\npoint = "ack-lost"\nprobability = "2.5%"\nseed = 7\nqueue-pair = 0x405\n'
        '[[fault]]\npoint = "port-down"\nport = 1\nlasts = "1.5s"\n',
    ),
    "latency": Kind(
        lambda path: LatencyModel(str(path)), LatencyModelError,
        'base = "plausible"\n[attached_memory]\nmedian_us = 10.0\np99_us = 20.0\n',
    ),
    "profile": Kind(
        lambda path: read_profile(str(path)), HcaSettingsError,
        "ports = 1\nmax_mtu = 4\nlog_max_qps = 12\nlog_max_cqs = 12\n",
    ),
}  # fmt: skip

_VALUES = st.sampled_from((
    "", "0", "-1", "1", "1e400", "nan", "inf", "-inf", "0x405", "99999999999999999999999", "true",
    '""', '"x"', '"1.5s"', '"-1s"', '"1e999s"', '"nan%"', '"\\u0000"', '"../../x"', "[]", "[[]]",
    '["x", 1]', "{}", "{ a = 1 }", "1979-05-27", "07:32:00", '"' + "x" * 2000 + '"',
))  # fmt: skip
_changes = st.one_of(
    st.tuples(st.just("value"), st.integers(0, 30), _VALUES),
    st.tuples(st.just("value"), st.integers(0, 30), _VALUES),
    st.tuples(st.just("gone"), st.integers(0, 30), st.just("")),
    st.tuples(st.just("twice"), st.integers(0, 30), st.just("")),
    st.tuples(st.just("key"), st.integers(0, 30), st.sampled_from(("x", '""', "a.b", "point"))),
    st.tuples(st.just("cut"), st.integers(0, 300), st.just("")),
    st.tuples(
        st.just("more"), st.just(0), st.text(alphabet="[]{}=\"'group.\n ab1,:#", max_size=20)
    ),
)


def changed(text: str, changes: list[tuple[str, int, str]]) -> str:
    """Apply changes to lines, whose numbers are taken modulo how many there are."""
    for name, number, words in changes:
        lines = text.splitlines() or [""]
        at = number % len(lines)
        key, _, value = lines[at].partition(" = ")
        if name == "value":
            lines[at] = f"{key} = {words}"
        elif name == "key":
            lines[at] = f"{words} = {value}"
        elif name == "gone":
            del lines[at]
        elif name == "twice":
            lines.insert(at, lines[at])
        text = "\n".join(lines)
        text = text[:number] if name == "cut" else text + words if name == "more" else text
    return text


@pytest.fixture(scope="module")
def path() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="shf-") as folder:
        yield Path(folder) / "file.toml"


def read(kind: Kind, path: Path, text: str) -> bool:
    """Read a file that says so; False if it was refused."""
    path.write_text(text, encoding="utf-8")
    try:
        kind.read(path)
    except kind.error as error:
        said = str(error)
    else:
        return True
    assert said
    return False


@pytest.mark.parametrize("name", KINDS)
def test_what_is_right_is_read(path: Path, name: str):
    assert read(KINDS[name], path, KINDS[name].text)


def _fuzz(kind: Kind, path: Path, examples: int) -> None:
    @settings(max_examples=examples)
    @given(changes=st.lists(_changes, min_size=1, max_size=4))
    def read_some(changes: list[tuple[str, int, str]]) -> None:
        read(kind, path, changed(kind.text, changes))

    read_some()


@pytest.mark.parametrize("name", KINDS)
def test_what_is_nearly_a_file(path: Path, name: str):
    _fuzz(KINDS[name], path, EXAMPLES)


@pytest.mark.stress
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", KINDS)
def test_what_is_nearly_a_file_for_long(path: Path, name: str):
    _fuzz(KINDS[name], path, 4_000)


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("found", kept("files"), ids=lambda found: found["name"])
def test_what_was_kept(path: Path, found: dict[str, Any], name: str):
    nested = found.get("nested", 0)
    text = "x = " + "[" * nested + "]" * nested if nested else found["text"]
    assert not read(KINDS[name], path, text) or text == ""
