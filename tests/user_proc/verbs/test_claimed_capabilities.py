"""Every capability and limit the device tells of works, and what it does not tell of is refused.

The tables of checks have exactly the bits and fields that are told: a new claim needs a check.
"""

import errno
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from kernel_proc.driver.local_link import LocalLink
from kernel_proc.hca.hca_device import HcaDevice
from kernel_proc.machine import Machine
from kernel_proc.settings import KernelSettings
from shared.verbs_enums import ibv_qp_create_send_ops_flags, ibv_wr_opcode
from tests.user_proc.verbs import claimed_limits as limits
from tests.user_proc.verbs import claimed_ports as ports
from tests.user_proc.verbs.claimed_flags import CLAIMED, INSIDE
from tests.user_proc.verbs.claims import Claims
from tests.user_proc.verbs.extended_program import refused
from tests.user_proc.verbs.lacking_flags import LACKING
from user_proc.cli.device_report import read_device
from user_proc.faults.fault_control import clear_faults, set_fault
from user_proc.faults.fault_values import parse_fault
from user_proc.process import UserProcess
from user_proc.transport.kernel_starter import start_kernel
from user_proc.verbs import enums as e
from user_proc.verbs.cq import CQEX, CqInitAttrEx
from user_proc.verbs.cq_ex import SUPPORTED_WC_FLAGS
from user_proc.verbs.device import Context, DeviceAttr, DeviceAttrEx, PortAttr, get_device_list
from user_proc.verbs.device_attributes import TMCaps
from user_proc.verbs.libibverbs_enums import (
    ibv_create_cq_wc_flags,
    ibv_device_cap_flags,
    ibv_port_cap_flags,
)
from user_proc.verbs.posting import OPCODES
from user_proc.verbs.qp import QPCap, QPEx, QPInitAttrEx

_FLAG = "IBV_DEVICE_"
SMALL = {
    "ports": 1, "max_mtu": 3, "max_wqes": 64, "max_sges": 5, "max_inline": 64, "max_srq_wqes": 32,
    "log_max_qps": 11, "log_max_cqs": 8, "log_max_cqes": 6, "log_max_srqs": 7, "log_max_mpts": 11,
    "log_max_pds": 5, "log_max_mgms": 6,
}  # fmt: skip
TABLES = {
    "DEVICE": limits.DEVICE, "EXTENDED": ports.EXTENDED, "PORT": ports.PORT,
    "PORT_FLAGS": ports.PORT_FLAGS,
}  # fmt: skip
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


@contextmanager
def claims_on(machine: Machine) -> Iterator[Claims]:
    with (
        UserProcess.in_process(machine.connect_in_process("control")) as control,
        UserProcess.in_process(machine.connect_in_process("claims")) as process,
        Context(name="mthca0", process=process) as context,
    ):
        yield Claims(context, switch_of(control), device_of(machine).tables.ports)


@pytest.fixture
def claims(machine: Machine) -> Iterator[Claims]:
    with claims_on(machine) as made:
        yield made


@pytest.fixture(scope="module")
def small_machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """A kernel whose tables can be filled, by one process."""
    profile = tmp_path_factory.mktemp("profile") / "small.toml"
    profile.write_text("\n".join(f"{name} = {value}" for name, value in SMALL.items()))
    settings = KernelSettings(seed=5, hca_profile=str(profile), hca_percent_per_process=100)
    made = Machine(settings, in_process=True)
    made.start_hca()
    yield made
    made.close()


@pytest.fixture
def small(small_machine: Machine) -> Iterator[Claims]:
    with claims_on(small_machine) as made:
        yield made


def switch_of(control: UserProcess) -> Callable[[int], Callable[[], object]]:
    """Give what takes a port down: the fault of that name."""

    def down(port: int) -> Callable[[], object]:
        set_fault(control, parse_fault("port-down", {"port": port, "lasts": "60s"}))
        return lambda: clear_faults(control)

    return down


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


# Limits


def test_every_field_has_a_check(small: Claims):
    assert set(DeviceAttr.FIELDS) == set(limits.DEVICE)
    assert set(DeviceAttrEx.FIELDS) == set(ports.EXTENDED)
    assert set(PortAttr.FIELDS) == set(ports.PORT)
    flags = small.context.query_port(1).port_cap_flags
    known = {one.name.removeprefix("IBV_PORT_") for one in ibv_port_cap_flags if flags & one}
    assert known == set(ports.PORT_FLAGS)
    extended = small.context.query_device_ex()
    for part in (
        extended.odp_caps, extended.tso_caps, extended.pci_atomic_caps, extended.rss_caps,
        extended.packet_pacing_caps, extended.tm_caps, extended.cq_mod_caps,
    ):  # fmt: skip
        assert all(getattr(part, name) == 0 for name in part.FIELDS), part


@pytest.mark.parametrize(
    ("table", "name"),
    [(table, name) for table in TABLES for name in TABLES[table]],
)
def test_a_limit_is_reached_and_no_more(small: Claims, table: str, name: str):
    TABLES[table][name](small)


#: What devinfo calls a field; others have its name. The last are of tests of their own.
LABELS = {
    "atomic_cap": "atomic_caps",
    "max_raw_ipv6_qp": "max_raw_ipv6_qps",
    "fw_ver": "fw_version",
}
PORT_LABELS = {"port_lid": "lid", "port_lmc": "lmc"}
OF_THEIR_OWN = {
    "hca_id", "transport", "num_comp_vectors", "cq_ex_fields", "send_ops_rc", "send_ops_uc",
    "send_ops_ud", "send_ops_xrc_send", "ports",
}  # fmt: skip


def test_what_devinfo_tells_are_fields_with_checks(small: Claims, small_machine: Machine):
    with UserProcess.in_process(small_machine.connect_in_process("devinfo")) as process:
        (device,) = get_device_list(process=process)
        report = read_device(device, small.context, None).as_dict(True)
    (port,) = report["ports"]
    told_fields = {LABELS.get(label, label) for label in report} - OF_THEIR_OWN
    assert told_fields <= set(limits.DEVICE) | set(ports.EXTENDED)
    assert set(limits.DEVICE) <= told_fields
    of_port = {PORT_LABELS.get(label, label) for label in port} - {"port", "gids", "pkeys"}
    assert of_port <= set(ports.PORT)
    assert report["cq_ex_fields"]
    assert report["num_comp_vectors"] == small.context.num_comp_vectors == 1


def test_the_fields_of_completions_that_are_told(small: Claims):
    for one in ibv_create_cq_wc_flags:
        number = refused(lambda one=one: CQEX(small.context, CqInitAttrEx(4, wc_flags=one)))
        assert number == (0 if SUPPORTED_WC_FLAGS & one else errno.EOPNOTSUPP), one


@pytest.mark.parametrize("kind", OPCODES)
def test_the_send_operations_that_are_told(small: Claims, kind: int):
    done = {ibv_wr_opcode(one).name.removeprefix("IBV_WR_") for one in OPCODES[kind]}
    for one in ibv_qp_create_send_ops_flags:
        attr = QPInitAttrEx(
            kind, scq=small.cq, rcq=small.cq, cap=QPCap(1, 0, 1, 0), pd=small.pd,
            comp_mask=e.IBV_QP_INIT_ATTR_PD | e.IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
            send_ops_flags=int(one),
        )  # fmt: skip
        number = refused(lambda attr=attr: QPEx(small.context, attr))
        assert (number == 0) == (one.name.removeprefix("IBV_QP_EX_WITH_") in done), one


@pytest.mark.processes
def test_what_a_kernel_process_tells_works():
    name = f"claims-{uuid.uuid4().hex[:8]}"
    with (
        start_kernel(name),
        UserProcess.connect(name) as control,
        Context(name="mthca0", kernel=name) as context,
    ):
        claims = Claims(context, switch_of(control))
        assert told(context) == set(CLAIMED)
        for flag, check in CLAIMED.items():
            if flag not in INSIDE:
                check(claims)


def test_extended_attributes_print_themselves(claims: Claims):
    text = str(claims.context.query_device_ex())
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert "Max QP : 64512" in lines
    assert "IBV_DEVICE_XRC" in lines
    assert lines[-7:] == [
        "Completion timestamp mask : 0xffffffffffffffff",
        "HCA core clock : 1000000 kHz",
        "Device cap flags ex : 0x1321c66",
        "Max WQ type RQ : 0",
        "Raw packet caps : 0x0",
        "Max DM size : 262144",
        "Phys port count ex : 2",
    ]
    lacking = DeviceAttrEx()
    lacking.tm_caps = TMCaps.of({"max_num_tags": 3})
    assert str(lacking).splitlines()[-1].split() == ["TM", "max", "num", "tags", ":", "3"]
