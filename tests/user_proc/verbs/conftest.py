"""A context on a kernel of words, for each test; nothing of it is left afterwards."""

from collections.abc import Iterator

import pytest

from tests.user_proc.verbs.stand_in import Wire
from user_proc.process import UserProcess
from user_proc.verbs.cq import CQ
from user_proc.verbs.device import Context
from user_proc.verbs.pd import PD


@pytest.fixture
def wire() -> Wire:
    return Wire()


@pytest.fixture
def process(wire: Wire) -> Iterator[UserProcess]:
    with UserProcess.in_process(wire) as connected:
        yield connected


@pytest.fixture
def context(process: UserProcess) -> Iterator[Context]:
    with Context(name="mthca0", process=process) as opened:
        yield opened


@pytest.fixture
def pd(context: Context) -> PD:
    return PD(context)


@pytest.fixture
def cq(context: Context) -> CQ:
    return CQ(context, 10)
