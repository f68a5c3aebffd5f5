"""Context memory, chunk by chunk."""

import errno

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kernel_proc.driver.limits import Profile
from kernel_proc.driver.refusal import VerbRefused
from kernel_proc.hca_abi import command_opcodes as op
from kernel_proc.hca_abi.contexts import CQC_SIZE, ICM_CHUNK_SIZE
from kernel_proc.scheduling.kthread import create_system_thread
from shared.verb_reasons import VerbReason
from tests.kernel_proc.driver.hca_box import HcaBox

IN_CHUNK = ICM_CHUNK_SIZE // CQC_SIZE
SMALL = Profile(log_cqs=15, log_mgms=9)


class IcmMachine(RuleBasedStateMachine):
    """Users of the CQ table beside a count for each chunk; commands fail now and then."""

    def __init__(self) -> None:
        super().__init__()
        self.box = HcaBox(verifier=False, profile=SMALL)
        self.icm = self.box.life.icm
        self.held: list[int] = []
        self.fails = False
        self.box.at_command(-1, lambda: None)
        interface = self.box.hca.commands
        perform = type(interface)._perform
        interface.__dict__["_perform"] = lambda command: (
            op.CMD_STAT_INTERNAL_ERR if self.fails else perform(interface, command)
        )

    @rule(index=st.integers(0, 8 * IN_CHUNK - 1), fails=st.booleans())
    def get(self, index: int, fails: bool) -> None:
        self.fails = fails
        mapped = index // IN_CHUNK in self.icm.inspect()["tables"]["cqc"]
        if fails and not mapped:
            with pytest.raises(VerbRefused, match="COMMAND_FAILED"):
                self.box.processor.run_thread(self.icm.get, "cqc", index)
        else:
            self.box.processor.run_thread(self.icm.get, "cqc", index)
            self.held.append(index)
        self.fails = False

    @precondition(lambda self: self.held)
    @rule(data=st.data(), fails=st.booleans())
    def put(self, data: st.DataObject, fails: bool) -> None:
        self.fails = fails
        index = data.draw(st.sampled_from(self.held))
        self.held.remove(index)
        self.box.processor.run_thread(self.icm.put, "cqc", index)
        self.fails = False

    @invariant()
    def users_are_counted(self) -> None:
        counted = self.icm.inspect()["tables"]["cqc"]
        for chunk in range(8):
            users = sum(index // IN_CHUNK == chunk for index in self.held) + (chunk == 0)
            assert counted.get(chunk, 0) == users

    def teardown(self) -> None:
        for index in self.held:
            self.box.processor.run_thread(self.icm.put, "cqc", index)
        self.box.close()


TestIcm = IcmMachine.TestCase
TestIcm.settings = settings(max_examples=10, stateful_step_count=25)


def test_a_range_across_chunks_is_mapped_whole_or_not_at_all(box: HcaBox):
    icm, run = box.life.icm, box.processor.run_thread
    before = icm.inspect()
    box.at_command(1, lambda: op.CMD_STAT_INTERNAL_ERR)
    with pytest.raises(VerbRefused):
        run(icm.get_range, "qpc", 2040, 1100)
    box.as_usual()
    assert icm.inspect()["tables"] == before["tables"]
    run(icm.get_range, "qpc", 2040, 1100)
    assert sorted(icm.inspect()["tables"]["qpc"]) == [0, 1, 2, 3]
    run(icm.put_range, "qpc", 2040, 1100)
    assert icm.inspect()["tables"] == before["tables"]


def test_without_memory_there_is_no_chunk(box: HcaBox):
    box.memory.limit = box.memory.held
    taken = []
    while (buffer := box.memory.allocate_contiguous(4096)) is not None:
        taken.append(buffer)
    before = box.life.icm.inspect()
    with pytest.raises(VerbRefused) as refused:
        box.processor.run_thread(box.life.icm.get, "rdb", 0)
    assert (refused.value.errno, refused.value.reason) == (
        errno.ENOMEM,
        VerbReason.OUT_OF_MEMORY,
    )
    assert box.life.icm.inspect() == before
    box.memory.free_all(taken)


def test_scattered_memory_makes_a_chunk_of_pieces(box: HcaBox):
    box.memory.limit = box.memory.held
    taken = []
    while (buffer := box.memory.allocate_contiguous(4096)) is not None:
        taken.append(buffer)
    box.memory.free_all(taken[::2])
    free = len(taken[::2])
    if free >= 64:
        box.processor.run_thread(box.life.icm.get, "rdb", 0)
        assert box.life.icm.inspect()["tables"]["rdb"] == {0: 1}
        box.processor.run_thread(box.life.icm.put, "rdb", 0)
    box.memory.free_all(taken[1::2])
    assert free >= 64


def test_two_threads_that_need_a_chunk_map_it_once(box: HcaBox):
    done: list[int] = []

    def get() -> None:
        box.life.icm.get("rdb", 7)
        done.append(1)

    maps = box.life.icm.maps
    for _ in range(3):
        create_system_thread(box.processor, get)
    box.processor.run_until(lambda: len(done) == 3)
    assert box.life.icm.maps == maps + 1
    assert box.life.icm.inspect()["tables"]["rdb"] == {0: 3}
    for _ in range(3):
        box.processor.run_thread(box.life.icm.put, "rdb", 7)
    assert box.life.icm.inspect()["tables"]["rdb"] == {}
