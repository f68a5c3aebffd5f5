"""Every capability and limit the device tells of works, and what it does not tell of is refused.

The tables of checks have exactly the bits and fields that are told: a new claim needs a check.
"""

import uuid
from collections.abc import Callable, Iterator

import pytest

from kernel_proc.driver.local_link import LocalLink
from kernel_proc.hca.hca_device import HcaDevice
from kernel_proc.hca.port import ACTIVE, DOWN
from kernel_proc.machine import Machine
from kernel_proc.settings import KernelSettings
from shared.verbs_enums import ibv_device_cap_flags
from tests.user_proc.verbs.claimed_flags import CLAIMED, INSIDE, LACKING, Claims
from user_proc.faults.fault_control import clear_faults, set_fault
from user_proc.faults.fault_values import parse_fault
from user_proc.process import UserProcess
from user_proc.transport.kernel_starter import start_kernel
from user_proc.verbs.device import Context

_FLAG = "IBV_DEVICE_"
ALL_FLAGS = {one.name.removeprefix(_FLAG) for one in ibv_device_cap_flags}


@pytest.fixture(scope="module")
def machine() -> Iterator[Machine]:
    made = Machine(KernelSettings(verifier=True, seed=5), in_process=True)
    made.start_hca()
    yield made
    made.close()


def device_of(machine: Machine) -> HcaDevice:
    assert machine.hca is not None
    assert isinstance(machine.hca.link, LocalLink)
    assert isinstance(machine.hca.link.device, HcaDevice)
    return machine.hca.link.device


@pytest.fixture
def claims(machine: Machine) -> Iterator[Claims]:
    ports = device_of(machine).tables.ports

    def down(number: int) -> Callable[[], object]:
        ports[number - 1].set_state(DOWN)
        return lambda: ports[number - 1].set_state(ACTIVE)

    with (
        UserProcess.in_process(machine.connect_in_process("claims")) as process,
        Context(name="mthca0", process=process) as context,
    ):
        yield Claims(context, down, ports)


def told(context: Context) -> set[str]:
    flags = context.query_device().device_cap_flags
    assert flags == context.query_device_ex().device_cap_flags_ex
    known = [one for one in ibv_device_cap_flags if flags & one]
    assert sum(known) == flags, "a bit that has no name"
    return {one.name.removeprefix(_FLAG) for one in known}


def test_every_bit_has_a_check(claims: Claims):
    assert told(claims.context) == set(CLAIMED)
    assert set(LACKING) == ALL_FLAGS - set(CLAIMED)


@pytest.mark.parametrize("flag", CLAIMED)
def test_what_is_told_works(claims: Claims, flag: str):
    CLAIMED[flag](claims)


@pytest.mark.parametrize("flag", LACKING)
def test_what_is_not_told_is_refused(claims: Claims, flag: str):
    check, number = LACKING[flag]
    assert check(claims) == number


@pytest.mark.processes
def test_what_a_kernel_process_tells_works():
    name = f"claims-{uuid.uuid4().hex[:8]}"
    with (
        start_kernel(name),
        UserProcess.connect(name) as control,
        Context(name="mthca0", kernel=name) as context,
    ):

        def down(port: int) -> Callable[[], object]:
            set_fault(control, parse_fault("port-down", {"port": port, "lasts": "20s"}))
            return lambda: clear_faults(control)

        claims = Claims(context, down)
        assert told(context) == set(CLAIMED)
        for flag, check in CLAIMED.items():
            if flag not in INSIDE:
                check(claims)
