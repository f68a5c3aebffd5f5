"""The machine the client tests use, in each build."""

from collections.abc import Iterator

import pytest

from tests.kernel_proc.devices.user_box import UserBox


@pytest.fixture(params=[False, True], ids=["free", "verifier"])
def box(request: pytest.FixtureRequest) -> Iterator[UserBox]:
    machine = UserBox(verifier=request.param)
    yield machine
    machine.dismantle()
