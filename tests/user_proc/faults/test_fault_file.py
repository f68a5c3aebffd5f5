"""Faults as people write them, in files and on command lines, and what is wrong with some."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.fault_messages import Fault
from shared.fault_points import FAULT_POINTS
from shared.message_codec import decode_as, encode
from user_proc.faults.fault_file import read_fault_file, read_faults
from user_proc.faults.fault_values import FaultFileError, parse_fault

FILE = """
[[fault]]
point = "ack-lost"
probability = "2.5%"
seed = 7
queue-pair = 0x405

[[fault]]
point = "port-down"
port = 1
lasts = "1.5s"

[[fault]]
point = "message-cut"
process = "worker"
part = "payload"
every = 3
times = 2
"""
FAULTS = (
    Fault("ack-lost", probability=25_000, seed=7, queue_pair=0x405),
    Fault("port-down", port=1, lasts_ns=1_500_000_000),
    Fault("message-cut", process="worker", part="payload", every=3, times=2),
)


def test_a_file(tmp_path: Path):
    path = tmp_path / "faults.toml"
    path.write_text(FILE, encoding="utf-8")
    assert read_fault_file(path) == FAULTS


def test_the_list_stands_beside_other_things():
    assert read_faults({"processes": 4, "fault": [{"point": "interrupt-lost", "nth": 2}]}) == (
        Fault("interrupt-lost", nth=2),
    )
    assert read_faults({"processes": 4}) == ()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("fault = 3", "'fault' is a list of tables"),
        ("fault = [3]", "fault 1 names no point"),
        ("[[fault]]\nnth = 1", "fault 1 names no point"),
        ('[[fault]]\npoint = "ack-lost"\n[[fault]]\npoint = "x"', "fault 2: there is no fault 'x'"),
        ("fault = ", "is no TOML"),
        ("speed = 3", "says 'speed', which is no list of faults"),
        ("", "has no [[fault]]"),
    ],
)
def test_what_is_wrong_with_a_file(tmp_path: Path, text: str, words: str):
    path = tmp_path / "faults.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(FaultFileError) as caught:
        read_fault_file(path)
    assert words in str(caught.value)
    with pytest.raises(FaultFileError, match="cannot be read: No such file"):
        read_fault_file(tmp_path / "none.toml")


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"speed": 1}, "a fault has no 'speed'"),
        ({"nth": 0}, "it lies above 0"),
        ({"nth": "x"}, "nth of ack-lost cannot be 'x': it is a whole number"),
        ({"probability": "often"}, "cannot be 'often': a probability lies above 0"),
        ({"nth": True}, "a whole number"),
        ({"nth": 1 << 32}, "below 2**32"),
        ({"probability": "110%"}, "a probability"),
        ({"probability": "nan"}, "a probability"),
        ({"lasts": "20"}, "a time is a number with"),
        ({"lasts": "20ms"}, "ack-lost has no lasts"),
        ({"command": ""}, "it is a name"),
        ({"command": 3}, "it is a name"),
    ],
)
def test_what_is_wrong_with_a_value(values: dict[str, Any], words: str):
    with pytest.raises(FaultFileError) as caught:
        parse_fault("ack-lost", values)
    assert words in str(caught.value)


def test_words_of_a_command_line():
    given_ = {"time": "20 ms", "command": "MAD_IFC", "every": "0x10"}
    fault = parse_fault("command-late", given_)
    assert fault == Fault("command-late", time_ns=20_000_000, command="MAD_IFC", every=16)


@given(
    st.sampled_from(sorted(FAULT_POINTS)),
    st.dictionaries(
        st.sampled_from(["nth", "every", "time", "lasts", "port", "process", "part", "status"]),
        st.one_of(st.integers(), st.text(max_size=6), st.booleans(), st.floats(), st.none()),
    ),
)
def test_anything_is_a_fault_or_an_error_of_its_own(point: str, values: dict[str, Any]):
    try:
        fault = parse_fault(point, values)
    except FaultFileError:
        return
    assert decode_as(Fault, encode(fault)) == fault
