"""The machines the client tests use: one without an HCA in each build, one with it."""

from collections.abc import Iterator

import pytest

from kernel_proc.machine import Machine
from kernel_proc.settings import KernelSettings
from tests.kernel_proc.devices.user_box import UserBox


@pytest.fixture(params=[False, True], ids=["free", "verifier"])
def box(request: pytest.FixtureRequest) -> Iterator[UserBox]:
    machine = UserBox(verifier=request.param)
    yield machine
    machine.dismantle()


@pytest.fixture(scope="module")
def machine() -> Iterator[Machine]:
    built = Machine(KernelSettings(verifier=True, seed=5), in_process=True)
    built.start_hca()
    yield built
    built.close()
