"""Opening, what kernel code may ask, and what can be looked at."""

import json

from kernel_proc.channel_interface.command_journal import (
    IOCTL_INTERNAL_READ_JOURNAL,
    CommandJournal,
)
from kernel_proc.hca_abi import command_opcodes as op
from kernel_proc.io_manager.device_stack import call_driver
from kernel_proc.io_manager.io_build import build_device_io_control_request
from kernel_proc.io_manager.irp import IoStatusBlock
from kernel_proc.io_manager.system_services import create_file
from kernel_proc.scheduling.event import Event
from shared.nt_status import (
    STATUS_DEVICE_NOT_READY,
    STATUS_IO_DEVICE_ERROR,
    STATUS_SUCCESS,
    STATUS_THREAD_IS_TERMINATING,
)
from shared.verb_codes import (
    HCA_DEVICE,
    IOCTL_ALLOC_PD,
    IOCTL_CREATE_AH,
    IOCTL_CREATE_CQ,
    IOCTL_QUERY_DEVICE,
    IOCTL_QUERY_GID,
    IOCTL_REG_MR,
)
from shared.verb_messages import CreateAh, CreateCq, PortQuery, RegMr
from tests.kernel_proc.driver.hca_box import HcaBox, HcaSession, good


def test_a_thread_that_ends_does_not_wait_for_the_bring_up():
    with HcaBox(wait=False) as box:
        session = box.session(opened=False)
        late = session.new_thread()
        box.extension.settled.clear()
        call = session.begin(create_file, HCA_DEVICE, 0, False, thread=late)
        box.processor.run_until(lambda: late.is_waiting)
        late.terminate()
        box.processor.run_until(lambda: call.done)
        assert call.value == (STATUS_THREAD_IS_TERMINATING, 0)
        box.processor.run_until(lambda: bool(box.extension.settled.signal_state))
        assert session.open()


def test_an_hca_that_ended_before_it_was_asked_anything():
    box = HcaBox(wait=False)
    box.extension.settled.clear()
    session = box.session(opened=False)
    box.processor.run_thread(box.extension.settled.wait)
    box.link.kill("for the test")
    box.link.on_death = None  # nobody listens yet when the next one dies at once
    restart = box.link.restart

    def stillborn() -> None:
        restart()
        box.link.kill("early")

    box.link.restart = stillborn  # type: ignore[method-assign] # a fault
    assert not box.processor.run_thread(box.extension.reset)
    assert session.try_open() == (STATUS_DEVICE_NOT_READY, 0)
    assert any("before it was asked" in line for line in box.lines)


def test_an_hca_that_cannot_be_started_again_stays_dead(box: HcaBox, session: HcaSession):
    def fail() -> None:
        raise OSError(12, "Cannot allocate memory")

    restart, box.link.restart = box.link.restart, fail  # type: ignore[method-assign] # a fault
    assert not box.processor.run_thread(box.extension.reset)
    assert session.try_open() == (STATUS_IO_DEVICE_ERROR, 0)
    assert box.extension.inspect()["failure"] == (
        "another cannot be started: Cannot allocate memory"
    )
    box.link.restart = restart  # type: ignore[method-assign] # the fault is over
    assert box.processor.run_thread(box.extension.reset)
    assert session.try_open()[0] == STATUS_SUCCESS


def read_journal(box: HcaBox, after: int) -> CommandJournal:
    """Ask as a kernel client does."""
    device = box.driver.devices[0]
    found: list[CommandJournal] = []

    def ask() -> int:
        event, iosb = Event(box.processor, notification=True), IoStatusBlock()
        irp = build_device_io_control_request(
            IOCTL_INTERNAL_READ_JOURNAL, device, after, 0, found, 0, True, event, iosb
        )
        assert irp is not None
        return call_driver(device, irp)

    assert box.processor.run_thread(ask) == STATUS_SUCCESS
    return found[0]


def test_the_journal_says_which_commands_a_verb_took(box: HcaBox, session: HcaSession):
    start = read_journal(box, 0).verbs
    good(session, IOCTL_ALLOC_PD)
    good(session, IOCTL_QUERY_DEVICE)
    good(session, IOCTL_QUERY_GID, PortQuery(1, 0))
    journal = read_journal(box, start)
    assert journal.verbs == start + 3
    assert [(record.verb - start, record.opcode) for record in journal.records] == [
        (2, op.MAD_IFC),
        (3, op.MAD_IFC),
        (3, op.MAD_IFC),
    ]
    assert read_journal(box, journal.verbs) == (journal.verbs, [])
    assert box.processor.run_thread(box.extension.reset)
    assert read_journal(box, 0).verbs == journal.verbs


def test_everything_can_be_looked_at_as_json(box: HcaBox, session: HcaSession):
    pd = good(session, IOCTL_ALLOC_PD).handle
    address = session.arena(1 << 16)
    good(session, IOCTL_REG_MR, RegMr(pd, address, 100, address, 7))
    good(session, IOCTL_CREATE_AH, CreateAh(pd, 1, 7, 0, 0, 0, 0, b"", 0, 0, 0, 0))
    good(session, IOCTL_CREATE_CQ, CreateCq(10, 0, 1, 0, address, 1 << 16))
    state = json.loads(json.dumps(box.extension.inspect()))
    (context,) = state["hca"]["contexts"]
    assert (context["process"], context["uar"]) == (str(session.process), session.uar)
    kinds = {item["kind"]: item for item in context["objects"]}
    assert set(kinds) == {"PD", "MR", "AH", "CQ"}
    assert kinds["PD"]["users"] == 2
    assert (kinds["MR"]["address"], kinds["MR"]["length"]) == (address, 100)
    assert kinds["MR"]["parents"] == [["PD", pd]]
    assert state["hca"]["commands"]["executed"]["SW2HW_CQ"] == 1
    assert state["hca"]["commands"]["times"]["SW2HW_CQ"]["count"] == 1
    assert state["hca"]["regions"]["mtt_segments"]["used"] > 16
    assert state["hca"]["icm"]["tables"]["cqc"] == {"0": 2}
    assert state["link"]["generation"] == 0
