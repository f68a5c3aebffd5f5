"""A real kernel for the tests of a file, or one in this process; a fresh user for each test."""

import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kernel_proc.machine import Machine
from kernel_proc.settings import KernelSettings
from user_proc.process import UserProcess
from user_proc.transport.kernel_starter import StartedKernel, start_kernel

GATE = f"{Path(__file__).parents[2] / 'drivers' / 'gate.py'}:driver_entry"


@pytest.fixture(scope="module")
def kernel() -> Iterator[StartedKernel]:
    name = f"io-{uuid.uuid4().hex[:8]}"
    with start_kernel(name, settings={"driver": [GATE]}) as started:
        yield started
        assert started.running, started.log.read_text()


@pytest.fixture
def process(kernel: StartedKernel) -> Iterator[UserProcess]:
    with UserProcess.connect(kernel.name) as connected:
        yield connected


class Inside:
    """A kernel in this process that checks itself and switches between equals at random."""

    def __init__(self, **settings: Any) -> None:
        values: dict[str, Any] = {"verifier": True, "seed": 5, "driver": (GATE,)} | settings
        self.machine = Machine(KernelSettings(**values), in_process=True)

    def connect(self) -> UserProcess:
        return UserProcess.in_process(self.machine.connect_in_process("inside"))

    def check(self) -> None:
        """Nothing is left of anybody."""
        state = self.machine.inspect()
        assert state["server"]["sessions"] == []
        assert state["server"]["dropped"] == state["server"]["refused"] == {}
        assert state["server"]["lost_answers"] == {}


@pytest.fixture
def inside() -> Iterator[Callable[..., Inside]]:
    made: list[Inside] = []

    def make(**settings: Any) -> Inside:
        made.append(Inside(**settings))
        return made[-1]

    yield make
    for kernel in made:
        kernel.check()


@pytest.fixture(params=["inside", pytest.param("processes", marks=pytest.mark.processes)])
def any_process(request: pytest.FixtureRequest) -> Iterator[UserProcess]:
    """The same user twice: of a kernel in this process, and of a real one."""
    if request.param == "processes":
        kernel = request.getfixturevalue("kernel")
        with UserProcess.connect(kernel.name) as connected:
            yield connected
        return
    inside = Inside()
    with inside.connect() as connected:
        yield connected
    inside.check()


@pytest.fixture
def threads() -> Iterator[Callable[..., Any]]:
    """Run routines in threads of their own; their values by `join`, all over at the end."""
    started: list[Running] = []

    def start(routine: Callable[..., Any], *arguments: Any) -> Running:
        started.append(Running(routine, arguments))
        return started[-1]

    yield start
    for one in started:
        one.thread.join(10)
        assert not one.thread.is_alive()


class Running:
    """A routine in a thread."""

    def __init__(self, routine: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        self._value: Any = None
        self._error: BaseException | None = None
        self.thread = threading.Thread(target=self._run, args=(routine, arguments))
        self.thread.start()

    def _run(self, routine: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        try:
            self._value = routine(*arguments)
        except BaseException as error:
            self._error = error

    def join(self) -> Any:
        """Wait for its end; give its value, or raise what it raised."""
        self.thread.join(10)
        assert not self.thread.is_alive()
        if self._error is not None:
            raise self._error
        return self._value
