"""Processors to test with: a free build, one under the verifier, and one by the real clock."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest

from kernel_proc.scheduling.bugcheck import BugCheck
from kernel_proc.scheduling.kernel_clock import RealClock, VirtualClock
from kernel_proc.scheduling.processor import Processor

Stops = Callable[..., AbstractContextManager[pytest.ExceptionInfo[BugCheck]]]


@pytest.fixture(params=[False, True], ids=["free", "verifier"])
def processor(request: pytest.FixtureRequest) -> Processor:
    """A processor of each build: what is tested with it holds in both."""
    return Processor(VirtualClock(), verifier=request.param)


@pytest.fixture
def free() -> Processor:
    return Processor(VirtualClock())


@pytest.fixture
def checked() -> Processor:
    return Processor(VirtualClock(), verifier=True)


@pytest.fixture(params=[0, 60_000], ids=["sleeps at once", "looks first"])
def real(request: pytest.FixtureRequest) -> Iterator[Processor]:
    """A processor that really sleeps, at once or after it has looked for a while."""
    processor = Processor(RealClock())
    processor.dispatcher.idle.window.length_ns = request.param
    yield processor
    processor.dispatcher.idle.close()


@pytest.fixture
def stops() -> Stops:
    """`with stops(code, p1, ...)`: the block ends in that bug check with these first parameters."""

    @contextmanager
    def expect(code: int, *parameters: int) -> Iterator[pytest.ExceptionInfo[BugCheck]]:
        with pytest.raises(BugCheck) as caught:
            yield caught
        assert caught.value.code == code, caught.value.text()
        assert caught.value.parameters[: len(parameters)] == parameters

    return expect
