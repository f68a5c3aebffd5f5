"""What a launch shows while it runs: lines for pipes, a table for terminals."""

import io
from typing import Any

import pytest
from rich.console import Console

from user_proc.groups.launch import NoView
from user_proc.groups.launch_view import LineView, TableView, launch_view, table_of


def row(state: str, **more: Any) -> dict[str, Any]:
    plain = {"pid": None, "cpu_percent": None, "rss_bytes": None, "switches": None}
    others = {"ops_per_s": None, "starts": 1, "reason": ""}
    return {"rank": "g[0]", "state": state, **plain, **others, **more}


def text_of(rows: list[dict[str, Any]]) -> str:
    console = Console(file=io.StringIO(), width=120)
    console.print(table_of(rows))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_a_line_for_each_change(capsys: pytest.CaptureFixture[str]):
    view = LineView()
    for state in ("waiting", "starting", "running", "running", "failed"):
        pid = 7 if state == "running" else None
        view.show([row(state, pid=pid, reason="exit code 1" if state == "failed" else "")])
    out, errors = capsys.readouterr()
    assert out == ""
    assert errors.splitlines() == ["g[0] running (pid 7)", "g[0] failed: exit code 1"]


def test_a_table_has_what_is_known():
    figures = {"cpu_percent": 12.5, "rss_bytes": 3 << 20, "switches": 44, "ops_per_s": 1234.5}
    lines = text_of([row("ready", pid=7, **figures), row("waiting")]).splitlines()
    assert lines[0].split() == [
        *("rank", "state", "pid", "cpu", "%", "rss", "switches", "ops/s", "starts")
    ]
    assert lines[1].split() == [*("g[0]", "ready", "7", "12.5", "3.0", "MiB", "44", "1,234", "1")]
    assert lines[2].split() == ["g[0]", "waiting", "1"]


def test_what_a_program_says_is_no_markup():
    assert "[red]x[/red]" in text_of([row("failed", reason="its last words: [red]x[/red]")])


def test_a_table_is_drawn_twice_a_second_at_most():
    class Live:
        drawn = 0

        def update(self, table: object, refresh: bool) -> None:
            assert refresh
            self.drawn += 1

    live = Live()
    view = TableView(live)
    for _ in range(5):
        view.show([row("running")])
    assert live.drawn == 1


def test_the_view_that_fits(monkeypatch: pytest.MonkeyPatch):
    with launch_view(False) as view:
        assert isinstance(view, NoView)
        view.show([row("running")])
    monkeypatch.setattr("sys.stderr", io.StringIO())
    with launch_view(True) as view:
        assert isinstance(view, LineView)
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr("sys.stderr", terminal)
    with launch_view(True) as view:
        assert isinstance(view, TableView)
        view.show([row("running", pid=7)])
    assert "running" in terminal.getvalue()
