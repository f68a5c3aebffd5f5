"""Faults on a machine in this process, whose clock is virtual: the same each time, and at once."""

import ctypes
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kernel_proc.machine import Machine
from kernel_proc.settings import KernelSettings
from shared.ioctl_codes import COMPLETION_INLINE, METHOD_BUFFERED, noop_code
from tests.end_to_end.fault_scene import LENGTH, Scene
from tests.end_to_end.verbs_holdings import everything_held
from user_proc.process import UserProcess
from user_proc.verbs import enums as e
from user_proc.verbs.mr import MR

S = 1_000_000_000
NOOP = noop_code(METHOD_BUFFERED, COMPLETION_INLINE)
OK, PROT_ERR, ACCESS_ERR, RETRY_ERR = (
    int(status)
    for status in (
        e.IBV_WC_SUCCESS, e.IBV_WC_LOC_PROT_ERR, e.IBV_WC_REM_ACCESS_ERR,
        e.IBV_WC_RETRY_EXC_ERR,
    )
)  # fmt: skip
KEYED = (
    e.IBV_WR_RDMA_WRITE, e.IBV_WR_RDMA_READ, e.IBV_WR_ATOMIC_FETCH_AND_ADD,
    e.IBV_WR_ATOMIC_CMP_AND_SWP,
)  # fmt: skip
RELIABLE = (e.IBV_WR_SEND, *KEYED)


class Box(Scene):
    """The scene on a machine of its own, whose clock is virtual."""

    def __init__(self, **settings: Any) -> None:
        self.machine = Machine(KernelSettings(verifier=True, seed=3, **settings), in_process=True)
        self.machine.start_hca()
        super().__init__(
            lambda name: UserProcess.in_process(self.machine.connect_in_process(name)),
            self._look_until,
            self._state,
        )

    def _look_until(self, predicate: Callable[[], bool]) -> None:
        """Look again and again, a millisecond of the machine apart."""
        looker = self.machine.connect_in_process("looker")
        for _ in range(100_000):
            if predicate():
                break
            looker.run(lambda: False, 1_000_000)
        else:
            raise AssertionError("it did not come to pass")
        looker.close()

    def _state(self) -> dict[str, Any]:
        state: dict[str, Any] = self.machine.processor.run_thread(self.machine.inspect_all)
        return state

    def held(self) -> dict[str, Any]:
        """What the kernel holds, with whatever it does in the background done."""
        held = everything_held(self.state())
        names = [one["name"] for one in held["bus"] if one["name"] != "kernel memory"]
        for name in ("descriptors", "descriptors of the HCA"):  # both of this process
            del held[name]
        # Which segments kernel memory is made of, and the doorbells' numbers, may change.
        return held | {"bus": names, "told the HCA": 0, "doorbells": len(held["doorbells"])}

    def seconds(self, act: Callable[[], object]) -> float:
        """How long something takes on the machine's clock."""
        before = self.machine.processor.clock.now_ns()
        act()
        return (self.machine.processor.clock.now_ns() - before) / S

    def finish(self) -> None:
        self.close()
        self.machine.close()


@pytest.fixture(scope="module")
def shared_box() -> Iterator[Box]:
    box = Box()
    # What is kept for the next time is there before anything is counted.
    memory = bytearray(LENGTH)
    with box.pair() as pair:
        pair.statuses(1)
        MR(pair.pd, LENGTH, 1, address_of(memory)).close()
    box.the_other_goes_on()
    box.clear()
    yield box
    box.finish()


@pytest.fixture
def box(shared_box: Box) -> Iterator[Box]:
    """The machine; after the test no fault is set, nothing more is held, and it works."""
    before = shared_box.held()
    yield shared_box
    shared_box.clear()
    assert shared_box.hits() == []
    shared_box.the_other_goes_on()
    after = shared_box.held()
    assert {key: (before[key], after[key]) for key in after if after[key] != before[key]} == {}


def events_of(box: Box) -> int:
    """How many completion events the driver has been told of, of objects that are there."""
    contexts = box.machine.inspect()["hca"]["driver"]["hca"]["contexts"]
    return sum(one.get("completion_events", 0) for c in contexts for one in c["objects"])


def address_of(memory: bytearray) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))
