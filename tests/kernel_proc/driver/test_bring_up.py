"""The HCA comes up in the mem-free order, and goes down in the opposite one."""

from itertools import groupby

import pytest

from kernel_proc.driver import entry
from kernel_proc.driver.limits import Profile
from kernel_proc.hca_abi import command_opcodes as op
from kernel_proc.hca_abi.device_settings import HcaSettings
from shared.nt_status import (
    STATUS_DEVICE_NOT_READY,
    STATUS_OBJECT_NAME_NOT_FOUND,
    STATUS_SUCCESS,
)
from shared.verb_codes import IOCTL_QUERY_DEVICE
from tests.kernel_proc.driver.hca_box import HcaBox, good

BRING_UP = [
    "QUERY_FW",
    "ENABLE_LAM",
    "MAP_FA",
    "RUN_FW",
    "QUERY_DEV_LIM",
    "SET_ICM_SIZE",
    "MAP_ICM_AUX",
    "MAP_ICM",
    "INIT_HCA",
    "QUERY_ADAPTER",
    "SW2HW_MPT",
    *["WRITE_MTT", "SW2HW_MPT", "SW2HW_EQ"] * 3,
    "MAP_EQ",
    "NOP",
    "CONF_SPECIAL_QP",
    "MAD_IFC",
]
TAKE_DOWN = [
    "CLOSE_IB",
    "CONF_SPECIAL_QP",
    "MAP_EQ",
    *["HW2SW_EQ", "HW2SW_MPT"] * 3,
    "HW2SW_MPT",
    "CLOSE_HCA",
    "UNMAP_ICM",
    "UNMAP_ICM_AUX",
    "UNMAP_FA",
    "DISABLE_LAM",
]


def in_groups(names: list[str]) -> list[str]:
    """Leave one of each run of equal names."""
    return [name for name, _ in groupby(names)]


def test_it_comes_up_in_the_mem_free_order():
    with HcaBox() as box:
        names = [op.COMMANDS[done.opcode].name for done in box.life.channel.journal]
        assert in_groups(names) == in_groups(BRING_UP)
        assert names.count("CONF_SPECIAL_QP") == names.count("MAD_IFC") == 2
        assert names.count("MAP_EQ") == 2
        assert box.extension.inspect()["up"]
        assert any("is up after" in line for line in box.lines)


def test_it_goes_down_in_the_opposite_order():
    box = HcaBox()
    journal = box.life.channel.journal
    journal.clear()
    box.processor.run_thread(entry.unload, box.driver)
    names = [op.COMMANDS[done.opcode].name for done in journal]
    assert in_groups(names) == in_groups(TAKE_DOWN)
    assert box.memory.used == 0
    assert box.io.devices == {}


def test_what_the_multicast_and_event_tables_need_is_mapped_whole():
    with HcaBox() as box:
        tables = box.life.icm.inspect()["tables"]
        assert len(tables["mgm"]) == 8
        assert {name: len(chunks) for name, chunks in tables.items() if name != "mgm"} == {
            "eqc": 1,
            "mtt": 1,
            "mpt": 1,
            "qpc": 1,
            "eqpc": 1,
            "rdb": 0,
            "cqc": 1,
            "srqc": 1,
        }


def test_an_open_waits_for_the_bring_up():
    with HcaBox(wait=False) as box:
        assert not box.extension.settled.signal_state
        session = box.session()
        assert good(session, IOCTL_QUERY_DEVICE).max_qp == 64512


def test_fragmented_memory_is_mapped_in_short_pieces():
    with HcaBox(largest_run=4) as box:
        assert box.extension.inspect()["up"]


@pytest.mark.parametrize("nth", [0, 1, 3, 6, 9, 22, 24, 27, 31, 38, 40, 42])
def test_a_command_that_fails_makes_opens_fail(nth: int):
    box = HcaBox(wait=False, profile=Profile())
    seen = box.at_command(nth, lambda: op.CMD_STAT_INTERNAL_ERR)
    session = box.session(opened=False)
    assert session.try_open() == (STATUS_DEVICE_NOT_READY, 0)
    assert len(seen) == nth + 1
    assert any("did not come up" in line and "COMMAND_FAILED" in line for line in box.lines)
    assert not box.extension.inspect()["up"]
    box.as_usual()
    assert box.processor.run_thread(box.extension.reset)
    session.open()
    box.close()


def test_a_death_while_it_comes_up_makes_opens_fail():
    box = HcaBox(wait=False)
    box.at_command(12, lambda: box.link.kill("for the test"))
    session = box.session(opened=False)
    assert session.try_open() == (STATUS_DEVICE_NOT_READY, 0)
    assert box.processor.run_thread(box.extension.reset)
    assert session.open()
    box.close()


def test_an_interrupt_line_that_is_dead_is_found_by_the_nop():
    box = HcaBox(wait=False)
    box.hca.__dict__["_raise_line"] = lambda: None
    box.processor.run_until(lambda: bool(box.extension.settled.signal_state))
    assert any("COMMAND_TIMEOUT" in line for line in box.lines)


def test_the_tables_are_those_of_the_settings():
    settings = HcaSettings(max_qp_rd_atom=16, log_max_qps=12, ports=1)
    with HcaBox(settings=settings) as box:
        device = good(box.session(), IOCTL_QUERY_DEVICE)
        assert (device.max_qp_rd_atom, device.phys_port_cnt) == (16, 1)
        assert device.max_qp == (1 << 12) - 1024
        assert device.max_res_rd_atom == 16 * device.max_qp


def test_an_unloaded_device_cannot_be_opened():
    box = HcaBox()
    session = box.session(opened=False)
    box.processor.run_thread(entry.unload, box.driver)
    assert session.try_open() == (STATUS_OBJECT_NAME_NOT_FOUND, 0)
    assert box.processor.run_thread(lambda: STATUS_SUCCESS) == STATUS_SUCCESS
