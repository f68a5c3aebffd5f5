"""The machine the driver's tests use."""

from collections.abc import Iterator

import pytest

from tests.kernel_proc.driver.hca_box import HcaBox, HcaSession
from tests.kernel_proc.driver.kernel_client_user import Client


@pytest.fixture(autouse=True, scope="module")
def machines_given_back() -> Iterator[None]:
    """What a machine holds of the system does not outlive its module of tests."""
    yield
    for machine in list(HcaBox.made):
        machine.give_back()


@pytest.fixture
def box() -> Iterator[HcaBox]:
    with HcaBox() as machine:
        yield machine


@pytest.fixture
def session(box: HcaBox) -> HcaSession:
    return box.session()


@pytest.fixture
def client(box: HcaBox) -> Iterator[Client]:
    kernel = Client(box)
    yield kernel
    kernel.close()
