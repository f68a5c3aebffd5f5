"""Private memory of a real other process: alive, replaced by exec, dead, of another user."""

import mmap
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kernel_proc.memory.access_violation import AccessViolation

pytestmark = pytest.mark.processes

PAGE = mmap.PAGESIZE


@pytest.fixture(params=["query", "text"])
def owner(request: pytest.FixtureRequest, new_owner: Callable[..., Any]) -> Any:
    started = new_owner()
    started.private.maps.query_supported = request.param == "query"
    return started


def test_another_process_is_read_and_written(owner: Any):
    address = owner.areas["writable"] + PAGE - 2
    assert owner.private.read(address, 4) == b"WWWW"
    owner.private.write(address, b"new!")
    assert bytes.fromhex(owner.ask("peek", address - 1, 6)) == b"Wnew!W"


def test_rights_are_those_of_the_owner(owner: Any):
    areas = owner.areas
    assert owner.private.read(areas["read_only"], 2) == b"RR"
    with pytest.raises(AccessViolation):
        owner.private.write(areas["read_only"], b"no")
    with pytest.raises(AccessViolation):
        owner.private.read(areas["no_access"], 2)
    with pytest.raises(AccessViolation):
        owner.private.read(areas["hole"], 2 * PAGE)
    assert bytes.fromhex(owner.ask("peek", areas["read_only"], 2)) == b"RR"


def test_memory_unmapped_by_its_owner_faults(owner: Any):
    address = owner.areas["writable"]
    owner.ask("unmap", address + PAGE, 1)
    assert owner.private.read(address, PAGE) == b"W" * PAGE
    with pytest.raises(AccessViolation) as caught:
        owner.private.write(address, bytes(3 * PAGE))
    assert caught.value.address == address + PAGE


def test_a_program_started_by_exec_is_never_reached(owner: Any):
    address = owner.areas["fixed"]
    assert owner.private.read(address, 4) == b"FFFF"
    assert owner.ask("execute") == {"pid": owner.areas["pid"]}
    assert owner.ask("any") == b"NNNNNNNN".hex()  # the new program has the very address mapped
    for access in (
        lambda: owner.private.read(address, 4),
        lambda: owner.private.write(address, b"evil"),
        lambda: owner.private.require(address, 4, False),
    ):
        with pytest.raises(AccessViolation):
            access()
    memory, _ = owner.descriptors
    assert os.pread(memory, 4, address) == b""
    assert os.pwrite(memory, b"evil", address) == 0
    assert owner.ask("any") == b"NNNNNNNN".hex()


def test_a_dead_process_faults(owner: Any):
    address = owner.areas["fixed"]
    owner.kill()
    with pytest.raises(AccessViolation):
        owner.private.read(address, 4)
    with pytest.raises(AccessViolation):
        owner.private.write(address, b"evil")
    memory, _ = owner.descriptors
    assert os.pread(memory, 4, address) == b""


def test_a_process_that_dies_between_check_and_copy_faults(
    owner: Any, monkeypatch: pytest.MonkeyPatch
):
    address = owner.areas["fixed"]
    owner.kill()
    monkeypatch.setattr(owner.private.maps, "first_refusal", lambda *_: None)
    with pytest.raises(AccessViolation, match="address space is gone"):
        owner.private.read(address, 4)
    with pytest.raises(AccessViolation, match="address space is gone"):
        owner.private.write(address, b"evil")


STRANGER = """
import os, sys
from kernel_proc.memory.private_memory import PrivateMemory
pid, memory, maps, address = map(int, sys.argv[1:])
os.setgroups([])
os.setresgid(1002, 1002, 1002)
os.setresuid(1002, 1002, 1002)
try:
    os.open(f"/proc/{pid}/mem", os.O_RDONLY)
except PermissionError:
    print("may not open")
private = PrivateMemory(memory, maps)
private.write(address, b"from 1002")
print(private.read(address, 10).decode())
"""


@pytest.mark.skipif(os.getuid() != 0, reason="changing the user needs root")
def test_the_owner_may_be_another_user_that_the_kernel_may_not_trace(
    new_owner: Callable[..., Any], repository: Path
):
    owner = new_owner(uid=1001)
    address = owner.areas["writable"]
    figures = (owner.areas["pid"], *owner.descriptors, address)
    printed = subprocess.check_output(
        [sys.executable, "-P", "-c", STRANGER, *map(str, figures)],
        pass_fds=owner.descriptors,
        env={**os.environ, "PYTHONPATH": str(repository)},
        text=True,
        timeout=30,
    )
    assert printed.splitlines() == ["may not open", "from 1002W"]
    assert bytes.fromhex(owner.ask("peek", address, 10)) == b"from 1002W"
