"""A kernel in this process with everything loaded that takes requests, and what it holds."""

import json
from collections.abc import Container
from typing import Any

from kernel_proc.driver import entry
from kernel_proc.machine import Machine
from kernel_proc.server.in_process import InProcessSession
from kernel_proc.settings import KernelSettings
from shared import nt_status
from shared.verb_codes import (
    HCA_CONTROL_DEVICE,
    IOCTL_ALLOC_PD,
    IOCTL_DEALLOC_PD,
    IOCTL_DEREG_MR,
    IOCTL_REG_MR,
    IOCTL_RESET_HCA,
    VERB_RESULT,
)
from shared.verb_messages import Object, RegMr
from tests.end_to_end.verbs_raw import RawVerbs
from tests.hostile.recipes import Sent
from user_proc.errors import NtStatusError
from user_proc.io.device_handle import DeviceHandle
from user_proc.process import UserProcess

SECONDS = 1.0  # of the machine's own clock, which stands still while code runs
STATUSES = {value for name, value in vars(nt_status).items() if name.startswith("STATUS_")}
IPOIB = "kernel_proc.clients.ipoib.ipoib_driver:driver_entry"
MIB = 1 << 20


def make_machine(**settings: Any) -> Machine:
    """Build a machine that checks itself, with an HCA."""
    values = {"verifier": True, "seed": 7, "arena_bytes_per_process": 32 * MIB} | settings
    machine = Machine(KernelSettings(**values), in_process=True)
    machine.start_hca()
    return machine


def answered(
    device: DeviceHandle, code: int, sent: Sent, statuses: Container[int] = STATUSES
) -> bytes | None:
    """Send a message on an overlapped file; its output, None for an error status that is one.

    What is pended is given the time that running kernel code needs, and cancelled.
    """
    output = bytearray(sent.room)
    try:
        request = device.start(code, sent.data, output)
        try:
            length = request.wait(SECONDS)
        except TimeoutError:
            device.cancel_ex(request)
            length = request.wait(SECONDS)
    except NtStatusError as error:
        status = error.status
    else:
        return bytes(output[:length])
    assert status in statuses
    return None


class User:
    """A session of this process, with its kernel's side at hand."""

    def __init__(self, machine: Machine, name: str) -> None:
        self.door: InProcessSession = machine.connect_in_process(name)
        self.process = UserProcess.in_process(self.door)
        self.doorbells = self.process.open_doorbells()
        self.machine = machine

    def verbs(self) -> RawVerbs:
        """Open the HCA."""
        return RawVerbs(self.process)

    def context_of(self, verbs: RawVerbs) -> Any:
        """The driver's context of an opening."""
        table = self.door.session.process.handle_table
        return table.entries[verbs.device.handle][0].fs_context

    def close(self) -> None:
        """End the session."""
        self.doorbells.close()
        self.process.close()


def holdings(machine: Machine) -> dict[str, Any]:
    """What a kernel holds for its users, as plain values that compare; counters are not in."""
    state = machine.inspect()
    hca, io, dispatcher = state["hca"], state["io_manager"], state["dispatcher"]
    life = hca["driver"]["hca"]
    # The kernel's own threads: it has as many as had work at the same time, and keeps them.
    queues = dispatcher["work_queues"].values()
    workers = {thread: work for queue in queues for thread, work in queue["workers"].items()}
    return {
        "contexts": [
            (one["pid"], [(thing["kind"], thing["handle"]) for thing in one["objects"]])
            for one in life["contexts"]
        ],
        "numbers": {name: table["used"] for name, table in life["numbers"].items()},
        "regions": life["regions"],
        "buffers": life["buffers"],
        "commands": life["commands"]["outstanding"],
        "sessions": [
            (one["session"], one["handles"], one["locked_pages"], one["in_flight"])
            for one in state["server"]["sessions"]
        ],
        "irps": io["irps"],
        "pool": io["pool"]["used"],
        "frames": hca["bus"]["frames"]["used"],
        "threads": len(dispatcher["thread_table"]) - len(workers),
        "work": [work for work in workers.values() if work != "free"],
    }


def check_witness(machine: Machine, witness: RawVerbs) -> None:
    """Somebody else has the device, and verbs that ask the HCA."""
    pd = witness.good(IOCTL_ALLOC_PD).handle
    arena = witness.process.allocate(4096, page_aligned=True)
    region = witness.good(IOCTL_REG_MR, RegMr(pd, arena.address, 4096, arena.address, 1))
    witness.good(IOCTL_DEREG_MR, Object(region.handle))
    witness.good(IOCTL_DEALLOC_PD, Object(pd))
    arena.release()
    assert not life_of(machine).dead


def check_as_before(machine: Machine, witness: RawVerbs, before: dict[str, Any]) -> None:
    """Nothing is left but what was there, and somebody else is served."""
    check_witness(machine, witness)
    after = holdings(machine)
    changes = {key: (before[key], after[key]) for key in after if after[key] != before[key]}
    assert after == before, json.dumps(changes)


def life_of(machine: Machine) -> Any:
    """The HCA's present life."""
    assert machine.hca is not None
    assert machine.hca.driver is not None
    return entry.extension_of(machine.hca.driver).life


def reset(user: User) -> None:
    """Bring the HCA up again."""
    with user.process.open_device(HCA_CONTROL_DEVICE) as control:
        output = bytearray(VERB_RESULT.size)
        control.device_io_control(IOCTL_RESET_HCA, None, output)
        assert VERB_RESULT.unpack(output)[0] == 0
