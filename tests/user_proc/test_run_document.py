"""The run document: strict both ways, written whole or not at all."""

import json
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from user_proc.run_document import (
    OTHER_PARTS,
    DocumentError,
    RunDocument,
    dump_strict,
    load_strict,
    other_document,
    require_writable,
    write_text,
)

DOCUMENT = RunDocument(
    "irp", {"marks": ["virtual"]}, {"quick": True}, [{"name": "echo"}], [{"p999_us": None}]
)

plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


def test_a_document_comes_back_as_it_was():
    assert load_strict(DOCUMENT.as_json()) == DOCUMENT.as_dict()
    assert list(json.loads(DOCUMENT.as_json())) == [
        "schema", "kind", "provenance", "settings", "floors", "rows",
    ]  # fmt: skip


@given(plain)
def test_whatever_is_written_a_strict_reader_takes(value: object):
    assert load_strict(RunDocument("x", {"value": value}, {}, [], []).as_json()) == {
        **RunDocument("x", {"value": value}, {}, [], []).as_dict()
    }


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_what_is_no_number_is_not_written(value: float):
    with pytest.raises(DocumentError, match=r"rows\[1\].p50_us is not a finite number"):
        dump_strict({"rows": [{}, {"p50_us": value}]})


def test_keys_that_are_no_text_are_not_written():
    with pytest.raises(DocumentError, match="no text: 1"):
        dump_strict({"floors": {1: "echo"}})


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda text: text.replace("null", "NaN"), "NaN is no JSON number"),
        (lambda text: text.replace("null", "Infinity"), "Infinity is no JSON number"),
        (lambda text: text[:-3], "not JSON"),
        (lambda text: "[]", "JSON object"),
        (lambda text: text.replace('"kind"', '"sort"'), "parts missing: .'kind'"),
        (lambda text: text.replace('"irp"', '"irp", "kind": "x"'), "same key twice"),
        (lambda text: text.replace('"version": 1', '"version": 2'), "version 1 only"),
    ],
)
def test_a_text_that_is_no_document_is_refused_with_the_reason(
    change: Callable[[str], str], reason: str
):
    with pytest.raises(DocumentError, match=reason):
        load_strict(change(DOCUMENT.as_json()))


def test_writing_replaces_the_file_in_one_step(tmp_path: Path):
    target = tmp_path / "run.json"
    target.write_text("old")
    write_text(str(target), "new")
    assert target.read_text() == "new"
    assert stat.S_IMODE(target.stat().st_mode) == 0o666 & ~_umask()
    assert os.listdir(tmp_path) == ["run.json"]


def _umask() -> int:
    mask = os.umask(0o022)
    os.umask(mask)
    return mask


@pytest.mark.parametrize("kind", OTHER_PARTS)
def test_a_run_that_is_no_benchmarks_has_all_parts_of_its_kind(kind: str):
    parts = dict.fromkeys(OTHER_PARTS[kind], 1)
    text = other_document(kind, {"marks": []}, {}, parts)
    assert load_strict(text)["kind"] == kind
    for name in parts:
        fewer = {part: value for part, value in parts.items() if part != name}
        with pytest.raises(DocumentError, match=f"parts missing: .'{name}'"):
            other_document(kind, {}, {}, fewer)
        whole = json.loads(text)
        del whole[name]
        with pytest.raises(DocumentError, match=f"parts missing: .'{name}'"):
            load_strict(json.dumps(whole))
        with pytest.raises(DocumentError, match=r"parts unknown: .'more'"):
            load_strict(json.dumps({**json.loads(text), "more": 1}))


@pytest.mark.parametrize("kind", [["irp"], {}, 3, None])
def test_a_kind_that_is_no_word_is_refused_like_any_unknown_text(kind: object):
    with pytest.raises(DocumentError, match="parts missing"):
        load_strict(json.dumps({"schema": 1, "kind": kind}))


def test_a_failed_write_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    target = tmp_path / "run.json"
    target.write_text("old")

    def refuse(source: object, destination: object) -> None:
        raise PermissionError("no")

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(PermissionError):
        write_text(str(target), "new")
    assert target.read_text() == "old"
    assert os.listdir(tmp_path) == ["run.json"]


def test_a_dash_is_standard_output(capsys: pytest.CaptureFixture[str]):
    require_writable("-")
    write_text("-", "text")
    assert capsys.readouterr().out == "text"


def test_a_pipe_is_written_to_and_not_replaced(tmp_path: Path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_text(str(pipe), "text")
        assert os.read(reader, 100) == b"text"
        assert stat.S_ISFIFO(pipe.stat().st_mode)
    finally:
        os.close(reader)


def test_where_nothing_can_be_written_is_known_before_the_run(tmp_path: Path):
    require_writable(str(tmp_path / "new.json"))
    with pytest.raises(FileNotFoundError, match="does not exist"):
        require_writable(str(tmp_path / "missing" / "run.json"))
    with pytest.raises(IsADirectoryError, match="is a folder"):
        require_writable(str(tmp_path))
