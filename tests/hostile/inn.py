"""A kernel with real sockets in this process: its guests do as they like, and leave nothing."""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kernel_proc.machine import Machine
from kernel_proc.settings import MIB
from shared.messages import Hello, Welcome
from tests.kernel_proc.server.test_lifeline import HELLO, House, Visitor


class Inn(House):
    """A kernel that knows how many descriptors are open while nobody is there."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.empty = descriptors()

    def everybody_leaves(self, visitor: Visitor) -> None:
        """Wait until nothing is left of a visitor; lanes close what he brought."""
        visitor.hang_up()
        self.visitors.remove(visitor)
        machine = self.machine
        self.run_until(lambda: not len(machine.sessions) and not silent(machine))
        with contextlib.suppress(AssertionError):  # which says less
            self.run_until(lambda: descriptors() <= self.empty)
        assert descriptors() <= self.empty
        assert machine.reception.arena_total.used == 0
        assert machine.reception.arena_places.used == 0


def descriptors() -> set[tuple[str, str]]:
    """The descriptors of this process that lead anywhere, and where."""
    found = set()
    for one in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # the one the folder is listed with
            found.add((one.name, os.readlink(one)))
    # hypothesis looks at how much memory there is, and keeps that open.
    return {one for one in found if not one[1].endswith("/statm")}


def silent(machine: Machine) -> int:
    """Connections that have not introduced themselves."""
    count: int = machine.inspect()["lifelines"]["silent_connections"]
    return count


@pytest.fixture(scope="module")
def house() -> Iterator[Inn]:
    folder = Path(tempfile.mkdtemp(prefix="shl-"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", str(folder))
        built = Inn(arena_bytes_per_process=MIB, max_requests_per_session=16)
        yield built
        built.machine.request_stop("the test is over")
        built.machine.run()
        assert built.machine.stopped_clean
        built.machine.close()
        built.lock.release()
    shutil.rmtree(folder)


def check_witness(house: Inn) -> None:
    """Somebody else is let in."""
    visitor = house.connect()
    hello = Hello(HELLO.min_version, HELLO.max_version, "witness")
    assert isinstance(visitor.greet(hello), Welcome)
    house.everybody_leaves(visitor)
