"""The tables of `softhca show`, made of the state of a real kernel in this process."""

import json
import os
from collections.abc import Iterator
from typing import Any

import pytest

from kernel_proc.driver.entry import extension_of
from kernel_proc.driver.local_link import LocalLink
from kernel_proc.hca.hca_device import HcaDevice
from kernel_proc.hca.memory_window import MemoryWindow
from kernel_proc.hca_abi import contexts as abi
from kernel_proc.machine import Machine
from kernel_proc.settings import KernelSettings
from tests.user_proc.cli.verbs_objects import Objects, make_objects
from user_proc.cli.columns import lines_of
from user_proc.cli.show_command import KINDS, show
from user_proc.cli.state_tables import TABLES
from user_proc.errors import ProtocolError
from user_proc.process import UserProcess
from user_proc.transport import kernel_control
from user_proc.verbs.device import Context
from user_proc.verbs.pd import PD

OBJECT_KINDS = ("pd", "mr", "mw", "ah", "cq", "qp", "srq", "xrcd")


class Inside:
    """A kernel with an HCA, and one user with the device open."""

    def __init__(self) -> None:
        self.machine = Machine(
            KernelSettings(verifier=True, seed=5, latency_model="plausible"), in_process=True
        )
        self.machine.start_hca()
        self.process = UserProcess.in_process(self.machine.connect_in_process("inside"))
        self.context = Context(name="mthca0", process=self.process)

    def state(self) -> dict[str, Any]:
        """The state as it is read from the kernel's file."""
        state: dict[str, Any] = json.loads(json.dumps(self.machine.inspect_all()))
        return state

    def rows(self, kind: str) -> list[dict[str, Any]]:
        return TABLES[kind].rows(self.state())

    def lines(self, kind: str) -> list[str]:
        return list(lines_of(TABLES[kind].columns, self.rows(kind)))

    def close(self) -> None:
        self.context.close()
        self.process.close()
        self.machine.close()


@pytest.fixture(scope="module")
def shared_inside() -> Iterator[tuple[Inside, Objects]]:
    inside = Inside()
    yield inside, make_objects(inside.context)
    inside.close()


@pytest.fixture
def inside(shared_inside: tuple[Inside, Objects]) -> Inside:
    return shared_inside[0]


@pytest.fixture
def objects(shared_inside: tuple[Inside, Objects]) -> Objects:
    return shared_inside[1]


def test_the_kinds_of_the_help_page_are_the_tables():
    assert tuple(TABLES) == KINDS


@pytest.mark.parametrize("kind", OBJECT_KINDS)
def test_an_object_is_shown_with_its_owner(inside: Inside, objects: Objects, kind: str):
    (row,) = inside.rows(kind)
    assert row["handle"] == getattr(objects, kind).handle
    assert row["session"] == inside.process.session
    assert row["pid"] == os.getpid()
    heading, line = inside.lines(kind)
    assert heading.split()[:4] == ["HANDLE", "SESSION", "PID", "CONTEXT"]
    assert [int(word) for word in line.split()[:3]] == [row["handle"], row["session"], row["pid"]]


def test_what_holds_what_is_shown(inside: Inside, objects: Objects):
    (pd,), (cq,), (qp,) = (inside.rows(kind) for kind in ("pd", "cq", "qp"))
    assert pd["users"] == 5  # MR, MW, AH, QP, SRQ
    assert cq["users"] == 2  # both ways of the QP
    assert qp["parents"] == [["PD", pd["handle"]], ["CQ", cq["handle"]], ["CQ", cq["handle"]]]
    line = inside.lines("qp")[1]
    assert line.endswith(f"PD {pd['handle']}, CQ {cq['handle']}, CQ {cq['handle']}")


def test_numbers_and_attributes_are_those_the_user_knows(inside: Inside, objects: Objects):
    (mr,), (qp,), (ah,) = (inside.rows(kind) for kind in ("mr", "qp", "ah"))
    assert (mr["key"], mr["address"], mr["length"]) == (objects.mr.lkey, objects.mr.buf, 8192)
    assert (qp["number"], qp["type"], qp["state"]) == (objects.qp.qp_num, "RC", "Reset")
    assert (ah["port"], ah["dlid"]) == (1, 2)
    line = inside.lines("mr")[1]
    assert "local_write remote_read" in line
    assert hex(objects.mr.lkey) in line


def test_a_destroyed_object_is_gone(inside: Inside, objects: Objects):
    with PD(inside.context) as another:
        assert [row["handle"] for row in inside.rows("pd")] == [objects.pd.handle, another.handle]
        handle = another.handle
    assert handle not in [row["handle"] for row in inside.rows("pd")]


def test_the_session_counts_its_objects(inside: Inside, objects: Objects):
    (row,) = inside.rows("session")
    assert (row["session"], row["process"], row["state"]) == (
        inside.process.session,
        "inside",
        "open",
    )
    assert (row["contexts"], row["objects"]) == (1, len(OBJECT_KINDS))
    assert row["arena_bytes"] == row["arenas"]["quota"]["used"] > 0


def test_a_request_the_driver_keeps_is_shown_with_its_holder(inside: Inside, objects: Objects):
    kept = [row for row in inside.rows("irp") if row["request"] == "get_cq_comp_event"]
    assert kept
    for row in kept:
        assert row["held_by"] == "device 'mthca0'"
        assert (row["state"], row["cancellable"], row["cancelled"]) == ("pending", True, False)
        assert row["session"] == inside.process.session


def test_a_thread_is_shown_with_what_it_waits_for(inside: Inside, objects: Objects):
    rows = {row["thread"]: row for row in inside.rows("thread")}
    owners = {row["thread"] for row in inside.rows("irp")}
    assert owners <= rows.keys()
    for number in owners:
        assert rows[number]["irps"] > 0
        assert rows[number]["state"] == "in user mode"
        assert rows[number]["waits_for"] == ""


def test_commands_have_both_times(inside: Inside, objects: Objects):
    rows = {row["command"]: row for row in inside.rows("command")}
    executed = inside.machine.inspect()["hca"]["driver"]["hca"]["commands"]["executed"]
    assert {name: row["count"] for name, row in rows.items()} == executed
    for row in rows.values():
        assert 0 < row["asked_ns"] <= row["achieved_ns"], row
    assert rows["ENABLE_LAM"]["failed"] == 1  # the personality has no memory of its own
    assert rows["SW2HW_CQ"]["failed"] == 0


def test_the_device_is_up_and_counts(inside: Inside, objects: Objects):
    (row,) = inside.rows("device")
    assert (row["device"], row["state"], row["contexts"]) == ("mthca0", "up", 1)
    assert row["pid"] is None  # it has no process of its own here
    assert (row["cq_used"], row["qp_used"], row["srq_used"]) == (1, 1, 1)
    assert row["icm_chunks"] == row["icm_maps"] - row["icm_unmaps"]
    missing = {column.key for column in TABLES["device"].columns} - row.keys()
    assert not missing


def test_memory_is_within_its_limits(inside: Inside, objects: Objects):
    rows = {row["memory"]: row for row in inside.rows("memory")}
    assert rows["arenas of all sessions"]["used"] > 0
    assert rows["registered regions"]["used"] >= 8192
    assert any(name.endswith(": locked pages") for name in rows)
    for row in rows.values():
        assert row["limit"] is None or 0 <= row["used"] <= row["limit"], row


def test_without_an_hca_there_are_no_objects_and_no_device():
    machine = Machine(KernelSettings(hca=False), in_process=True)
    state = json.loads(json.dumps(machine.inspect()))
    for kind in (*OBJECT_KINDS, "device", "command"):
        assert TABLES[kind].rows(state) == []
    assert [row["memory"] for row in TABLES["memory"].rows(state)] == [
        "arenas of all sessions",
        "arena descriptors",
        "pool of drivers",
    ]
    machine.close()


def test_objects_on_a_dead_hca_are_marked():
    inside = Inside()
    with PD(inside.context):
        assert inside.machine.hca is not None
        assert inside.machine.hca.driver is not None
        extension = extension_of(inside.machine.hca.driver)
        inside.machine.processor.run_thread(extension.fail, "the test says so")
        (row,) = inside.rows("device")
        assert (row["state"], row["failure"]) == ("dead", "the test says so")
        (pd,) = inside.rows("pd")
        assert pd["dead"] is True
        assert inside.lines("pd")[0].split()[-1] == "HCA"
        assert inside.lines("pd")[1].split()[-1] == "dead"
    inside.close()


def test_a_kernel_of_another_version_is_one_sentence(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(kernel_control, "kernel_state", lambda name: {"server": {}})
    with pytest.raises(ProtocolError, match=r"tells nothing of 'sessions'.* of another version"):
        show("pd")


def test_a_window_shows_what_the_hca_has_bound_it_to(inside: Inside, objects: Objects):
    (row,) = inside.rows("mw")
    assert (row["key"], row["bound"], row["region"]) == (objects.mw.rkey, False, 0)
    assert inside.machine.hca is not None
    link = inside.machine.hca.link
    assert isinstance(link, LocalLink)
    assert isinstance(link.device, HcaDevice)
    translation = link.device.tables.translation
    window, region = (translation.named(key) for key in (objects.mw.rkey, objects.mr.lkey))
    assert isinstance(window, MemoryWindow)
    assert region is not None
    window.bind(region, objects.mr.buf, 64, abi.MPT_FLAG_REMOTE_READ, zero_based=False)
    window.key ^= 1
    (row,) = inside.rows("mw")
    window.key ^= 1
    window.unbind()
    assert (row["key"], row["bound"]) == (objects.mw.rkey ^ 1, True)
    assert (row["region"], row["length"], row["rights"]) == (objects.mr.rkey, 64, ["remote_read"])
    state = inside.state()
    state["hca"]["device"] = {"error": "silent"}
    (row,) = TABLES["mw"].rows(state)
    assert (row["key"], row["bound"]) == (objects.mw.rkey, None)
