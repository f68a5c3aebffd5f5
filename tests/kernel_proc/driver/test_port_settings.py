"""What a subnet manager sets of a port, asked of the control device: each change, each refusal."""

import errno
from collections.abc import Iterator

import pytest

from kernel_proc.machine import Machine
from kernel_proc.settings import KernelSettings
from shared.verb_codes import HCA_CONTROL_DEVICE, IOCTL_SET_PORT, SET_PORT, VERB_RESULT, PortSetting
from shared.verb_reasons import VerbReason as Reason
from user_proc.process import UserProcess
from user_proc.verbs import enums as e
from user_proc.verbs.device import Context

PKEY, GUID, LID, PREFIX, REREGISTER = PortSetting


@pytest.fixture(scope="module")
def machine() -> Iterator[Machine]:
    made = Machine(KernelSettings(verifier=True, seed=5), in_process=True)
    made.start_hca()
    yield made
    made.close()


class Manager:
    """Sets ports, and sees by a context what becomes of it."""

    def __init__(self, process: UserProcess, context: Context) -> None:
        self.context = context
        self._control = process.open_device(HCA_CONTROL_DEVICE)

    def set(self, port: int, setting: int, index: int = 0, value: int = 0) -> tuple[int, int]:
        output = bytearray(VERB_RESULT.size)
        data = SET_PORT.pack(port, setting, index, value)
        assert self._control.device_io_control(IOCTL_SET_PORT, data, output) == len(output)
        number, reason, *_ = VERB_RESULT.unpack(output)
        return number, reason

    def event(self) -> int:
        event = self.context.get_async_event()
        event.ack()
        return event.event_type


@pytest.fixture
def manager(machine: Machine) -> Iterator[Manager]:
    with (
        UserProcess.in_process(machine.connect_in_process("manager")) as process,
        Context(name="mthca0", process=process) as context,
    ):
        yield Manager(process, context)


def test_each_setting_is_an_event_and_can_be_seen(manager: Manager):
    context = manager.context
    lid, prefix = context.query_port(2).lid, int(context.query_gid(2, 0).raw[:8].hex(), 16)
    port = context.query_port(2)
    last_key, last_gid = port.pkey_tbl_len - 1, port.gid_tbl_len - 1
    changes = [
        (PKEY, last_key, 0x8123, e.IBV_EVENT_PKEY_CHANGE),
        (PKEY, last_key, 0, e.IBV_EVENT_PKEY_CHANGE),
        (GUID, last_gid, 0x77, e.IBV_EVENT_GID_CHANGE),
        (LID, 0, 0xBFFF, e.IBV_EVENT_LID_CHANGE),
        (PREFIX, 0, 0xFEC0 << 48, e.IBV_EVENT_GID_CHANGE),
        (REREGISTER, 0, 0, e.IBV_EVENT_CLIENT_REREGISTER),
    ]
    for setting, index, value, event in changes:
        assert manager.set(2, setting, index, value) == (0, Reason.NONE)
        assert manager.event() == event, setting
        if setting == PKEY:
            assert context.query_pkey(2, last_key) == int.from_bytes(
                value.to_bytes(2, "big"), "little"
            )
    assert (
        context.query_gid(2, last_gid).raw == bytes.fromhex("fec0000000000000") + bytes(7) + b"\x77"
    )
    assert (context.query_port(2).lid, context.query_port(2).state) == (0xBFFF, e.IBV_PORT_ACTIVE)
    for setting, index, value in ((GUID, last_gid, 0), (LID, 0, lid), (PREFIX, 0, prefix)):
        assert manager.set(2, setting, index, value) == (0, Reason.NONE)
        manager.event()
    # What is as it is already is no event.
    assert manager.set(2, LID, 0, lid) == (0, Reason.NONE)
    assert manager.set(2, REREGISTER) == (0, Reason.NONE)
    assert manager.event() == e.IBV_EVENT_CLIENT_REREGISTER


@pytest.mark.parametrize(
    ("port", "setting", "index", "value", "reason"),
    [
        *((port, PKEY, 0, 1, Reason.NO_SUCH_PORT) for port in (0, 3, 0xFFFF_FFFF)),
        *((1, setting, 0, 1, Reason.BAD_PORT_SETTING) for setting in (0, 6, 0xFFFF_FFFF)),
        *((1, PKEY, index, 1, Reason.NO_SUCH_INDEX) for index in (64, 0xFFFF_FFFF)),
        (1, PKEY, 1, 0x1_0000, Reason.BAD_PORT_SETTING),
        *((1, GUID, index, 1, Reason.NO_SUCH_INDEX) for index in (32, 0xFFFF_FFFF)),
        (1, GUID, 0, 1, Reason.BAD_PORT_SETTING),
        *((1, LID, 0, lid, Reason.MAD_FAILED) for lid in (0, 0xC000, 0xFFFF)),
        (1, LID, 0, 0x1_0001, Reason.BAD_PORT_SETTING),
    ],
)
def test_what_no_port_can_have(
    manager: Manager, port: int, setting: int, index: int, value: int, reason: Reason
):
    before = manager.context.query_port(1)
    assert manager.set(port, setting, index, value) == (errno.EINVAL, reason)
    assert str(manager.context.query_port(1)) == str(before)
