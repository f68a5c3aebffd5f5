"""Each check of the doctor: what it says where the thing is there, and where it is not."""

import errno
import os
import platform
import socket
import sys
import tomllib
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from shared.connection_file import instance_paths
from user_proc.doctor import machine_checks, python_checks, system_checks
from user_proc.doctor.check import Check, State
from user_proc.doctor.diagnosis import FIRST, is_well

ROOT = Path(__file__).resolve().parents[3]
MIB = 1 << 20


def refuse(*arguments: Any, **options: Any) -> Any:
    raise OSError(errno.EPERM, "Operation not permitted", "/proc/self/mem")


def test_what_the_tests_run_on_lacks_nothing(root: Path):
    checks = [check() for check in FIRST]
    assert is_well(checks), [check for check in checks if check.state is State.MISSING]
    assert len({check.name for check in checks}) == len(checks)
    assert all(check.found for check in checks)
    assert all(bool(check.cure) == (check.state is not State.OK) for check in checks)


@pytest.mark.parametrize(
    ("module", "name", "check"),
    [
        (system_checks, "create_segment", system_checks.check_shared_memory),
        (os, "pidfd_open", system_checks.check_pidfd),
        (system_checks, "open_own_memory", system_checks.check_private_memory),
        (socket, "socketpair", system_checks.check_sockets),
        (machine_checks, "_try_folder", machine_checks.check_runtime_folder),
    ],
)
def test_what_the_system_refuses_is_missing_with_a_cure(
    root: Path, monkeypatch: pytest.MonkeyPatch, module: Any, name: str, check: Callable[[], Check]
):
    monkeypatch.setattr(module, name, refuse)
    found = check()
    assert found.state is State.MISSING
    assert "not permitted" in found.found
    assert found.cure


def test_memory_another_process_cannot_reach_is_missing(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(system_checks, "_READER", "raise PermissionError('forbidden here')")
    found = system_checks.check_private_memory()
    assert found.state is State.MISSING
    assert "forbidden here" in found.found
    monkeypatch.setattr(system_checks, "_READER", "")  # it does nothing, and says so to nobody
    assert "did not change" in system_checks.check_private_memory().found


@pytest.mark.parametrize(
    ("free", "state"), [(100 * MIB, State.MISSING), (700 * MIB, State.WARNING), (1 << 40, State.OK)]
)
def test_memory_is_missing_short_or_enough(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, free: int, state: State
):
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=free))
    monkeypatch.setattr(machine_checks, "_GROUP", tmp_path)
    found = machine_checks.check_memory()
    assert found.state is state
    assert f"{free // MIB} MiB available" in found.found


def test_a_control_group_counts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr(machine_checks, "_GROUP", tmp_path)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=1 << 40))
    (tmp_path / "memory.max").write_text(f"{500 * MIB}\n")
    (tmp_path / "memory.current").write_text(f"{400 * MIB}\n")
    (tmp_path / "cpu.max").write_text("50000 100000\n")
    memory, cores = machine_checks.check_memory(), machine_checks.check_cores()
    assert (memory.state, cores.state) == (State.MISSING, State.WARNING)
    assert memory.found.startswith("100 MiB left of the control group's limit")
    assert "0.5 by the control group's quota" in cores.found
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "cpu.max").write_text("max 100000\n")
    assert machine_checks.check_memory().state is State.OK
    assert "quota" not in machine_checks.check_cores().found


@pytest.mark.parametrize(("source", "state"), [("hpet", State.WARNING), ("tsc", State.OK)])
def test_a_slow_clock_is_a_warning(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, source: str, state: State
):
    monkeypatch.setattr(machine_checks, "_CLOCK_SOURCE", tmp_path / "source")
    assert "source unknown" in machine_checks.check_clock().found
    (tmp_path / "source").write_text(f"{source}\n")
    found = machine_checks.check_clock()
    assert (found.state, source in found.found) == (state, True)


def test_a_runtime_folder_open_to_others_is_missing_with_the_cure(root: Path):
    root.mkdir()
    root.chmod(0o755)
    found = machine_checks.check_runtime_folder()
    assert found.state is State.MISSING
    assert (found.found, found.cure) == (
        f"{root} is open to other users",
        f"run 'chmod 700 {root}'",
    )


def test_a_long_runtime_folder_is_told(root: Path, monkeypatch: pytest.MonkeyPatch):
    long = root.parent / ("x" * 90)
    long.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(long))
    found = machine_checks.check_runtime_folder()
    assert found.state is State.OK
    assert f"XDG_RUNTIME_DIR={long} cannot hold sockets" in found.found
    used = instance_paths("doctor").folder.parent
    assert list(used.iterdir()) == []
    used.rmdir()


@pytest.mark.parametrize(
    ("setting", "value", "words"),
    [
        ("python_implementation", "PyPy", "CPython 3.11 or later"),
        ("version_info", (3, 10, 4), "CPython 3.11 or later"),
        ("_is_gil_enabled", False, "with the GIL"),
    ],
)
def test_another_interpreter_is_missing(
    monkeypatch: pytest.MonkeyPatch, setting: str, value: Any, words: str
):
    owner = platform if setting.startswith("python") else sys
    made = value if setting == "version_info" else lambda: value
    monkeypatch.setattr(owner, setting, made, raising=False)
    found = python_checks.check_python()
    assert found.state is State.MISSING
    assert words in found.cure


def test_the_packages_are_those_of_the_project():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = {text.replace(">=", " ").split()[0] for text in project["dependencies"]}
    assert {name for name, _ in python_checks.requirements()} == wanted
    assert all(least for _, least in python_checks.requirements())


def test_packages_that_are_old_or_not_there_are_missing(monkeypatch: pytest.MonkeyPatch):
    versions = {"pyzmq": "26.9.1", "msgpack": "1.10.0rc1"}

    def version(name: str) -> str:
        if name == "greenlet":
            raise metadata.PackageNotFoundError(name)
        return versions.get(name, "9999")

    monkeypatch.setattr(metadata, "version", version)
    found = python_checks.check_packages()
    assert found.state is State.MISSING
    assert "greenlet is not installed" in found.found
    assert "pyzmq is 26.9.1, older than 27" in found.found
    assert "msgpack" not in found.found
    assert "'greenlet>=" in found.cure
