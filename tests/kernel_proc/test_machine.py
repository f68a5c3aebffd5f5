"""The machine as a whole: what it is made of, how it shows itself, how it is left."""

import json
import os
from typing import Any

from kernel_proc.machine import Machine
from kernel_proc.settings import KernelSettings
from shared.envelope import KIND_DEQUEUE, make_header, parse_header
from shared.nt_status import STATUS_INVALID_HANDLE


def ask(door: Any) -> int:
    welcome = door.welcome
    header = make_header(KIND_DEQUEUE, session=welcome.session, epoch=welcome.epoch, thread=1)
    return parse_header(door.exchange([header])[0]).status


def test_every_room_shows_itself_as_plain_values():
    machine = Machine(in_process=True)
    door = machine.connect_in_process("shown")
    assert ask(door) == STATUS_INVALID_HANDLE
    state = json.loads(json.dumps(machine.inspect()))
    (session,) = state["server"]["sessions"]
    assert session["process"] == "shown"
    assert (session["pid"], session["requests"], session["in_flight"]) == (os.getpid(), 1, 0)
    assert set(state["io_manager"]["devices"]) >= {"noop", "benchmark"}
    assert state["descriptors"] > 0
    door.close()


def test_machines_in_one_process_know_nothing_of_each_other():
    first, second = Machine(in_process=True), Machine(in_process=True)
    doors = [first.connect_in_process(), second.connect_in_process()]
    assert doors[0].welcome.session == doors[1].welcome.session == 1
    assert doors[0].welcome.epoch != doors[1].welcome.epoch
    doors[0].close()
    assert ask(doors[1]) == STATUS_INVALID_HANDLE
    doors[1].close()


def test_a_session_in_process_has_arenas_and_its_own_memory():
    settings = KernelSettings(arena_bytes_per_process=8192, verifier=True)
    machine = Machine(settings, in_process=True)
    door = machine.connect_in_process()
    grant = door.allocate_arena(5000)
    assert (grant.arena_id, grant.length) == (1, 8192)
    os.close(grant.descriptor)
    assert door.allocate_arena(1).status != 0
    assert door.arena_mapped(1, 0x7000_0000_0000) == 0
    assert door.free_arena(1) == 0
    assert machine.reception.arena_total.used == 0
    door.close()
