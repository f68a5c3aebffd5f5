"""Programs of verbs on a machine in this process: by IOCTL and by the kernel client, with journal.

The commands of each verb are those of the real driver.
"""

import errno
import struct
from collections.abc import Iterator

import pytest

from kernel_proc.clients.verbs_client import LARGEST_REGION, MOST_PASSES
from kernel_proc.driver import entry
from kernel_proc.machine import Machine
from kernel_proc.settings import KernelSettings
from shared import verb_codes as codes
from shared.ioctl_codes import BENCHMARK_DEVICE, IOCTL_COMMAND_JOURNAL, IOCTL_VERBS_RUN
from shared.message_codec import encode
from shared.messages import VerbsRun
from shared.nt_status import (
    STATUS_BUFFER_TOO_SMALL,
    STATUS_INVALID_PARAMETER,
    STATUS_NO_SUCH_DEVICE,
    STATUS_OBJECT_NAME_NOT_FOUND,
)
from shared.verb_messages import CreateAh, ModifyPort, Multicast, Object, PortQuery, RegMr
from shared.verb_program import RUN_RESULT, VerbStep, pack_program
from user_proc.bench.timed_loops import Window
from user_proc.bench.verbs.verb_operations import Region, UserVerbs, VerbFailed, VerbsBench
from user_proc.bench.verbs.verb_programs import (
    MEMORY_REGISTERS,
    QUEUE_BYTES,
    REGION,
    REGION_BYTES,
    Program,
    control_mix,
    every_verb,
    registration,
)
from user_proc.errors import NtStatusError
from user_proc.process import UserProcess

MAD, MTT, MPT_IN, MPT_OUT = "MAD_IFC", "WRITE_MTT", "SW2HW_MPT", "HW2SW_MPT"
#: Verb -> commands, with memory of a few pages and the tables' chunks mapped.
COMMANDS = {
    "query_device": [MAD],
    "query_device_ex": [],
    "query_clock": [],
    "query_port": [MAD],
    "query_gid": [MAD, MAD],
    "query_pkey": [MAD],
    "modify_port": [MAD, "SET_IB"],
    "alloc_pd": [],
    "reg_mr": [MTT, MPT_IN],
    "dereg_mr": [MPT_OUT],
    "alloc_mw": [MPT_IN],
    "dealloc_mw": [MPT_OUT],
    "alloc_dm": [],
    "free_dm": [],
    "create_ah": [],
    "destroy_ah": [],
    "create_cq": [MTT, MPT_IN, "SW2HW_CQ"],
    "resize_cq": [MTT, MPT_IN, "RESIZE_CQ", MPT_OUT],
    "create_srq": [MTT, MPT_IN, "SW2HW_SRQ"],
    "modify_srq": ["ARM_SRQ"],
    "query_srq": ["QUERY_SRQ"],
    "destroy_srq": ["HW2SW_SRQ", MPT_OUT],
    "create_qp": [MTT, MPT_IN],
    "modify_qp_init": ["RST2INIT_QPEE"],
    "modify_qp_rtr": ["INIT2RTR_QPEE"],
    "modify_qp_rts": ["RTR2RTS_QPEE"],
    "query_qp": ["QUERY_QPEE"],
    "destroy_qp": ["ERR2RST_QPEE", MPT_OUT],
    "attach_mcast": ["MGID_HASH", "READ_MGM", "WRITE_MGM"],
    "open_xrcd": [],
    "close_xrcd": [],
    "destroy_cq": ["HW2SW_CQ", MPT_OUT],
    "dealloc_pd": [],
}


@pytest.fixture
def process(machine: Machine) -> Iterator[UserProcess]:
    with UserProcess.in_process(machine.connect_in_process("verbs client")) as connected:
        yield connected


NO_PORT = PortQuery(99)
IN_ONE_PIECE = (
    "reg_mr was refused: errno 12, Cannot allocate memory: the kernel has no 16384 bytes of memory "
    "the device can reach in one piece"
)


def objects(machine: Machine) -> int:
    assert machine.hca is not None
    assert machine.hca.driver is not None
    contexts = entry.extension_of(machine.hca.driver).life.contexts
    return sum(len(context) for context in contexts.values())


def prepared(process: UserProcess, program: Program) -> UserVerbs:
    verbs = UserVerbs(process)
    queues = process.allocate(QUEUE_BYTES * len(MEMORY_REGISTERS), page_aligned=True)
    for place, register in enumerate(MEMORY_REGISTERS):
        verbs.registers[register] = queues.address + place * QUEUE_BYTES
    verbs.registers[REGION] = Region(process, "arena", REGION_BYTES).address
    verbs.run(program.setup)
    return verbs


def check_commands(program: Program, names: list[list[str]]) -> None:
    assert len(names) == len(program.steps)
    for step, sent in zip(program.steps, names, strict=True):
        if step.row in COMMANDS:
            assert sent == COMMANDS[step.row], step.row


#: Of the extended calls, which the table of the benchmark leaves out.
EXTENDED = {
    "copy_to_dm",
    "copy_from_dm",
    "reg_dm_mr",
    "export_context",
    "import_context",
    "import_pd",
    "import_mr",
    "import_dm",
}


def test_a_user_performs_every_verb_and_the_journal_tells_its_commands(
    machine: Machine, process: UserProcess
):
    program, bench = every_verb().for_client("user"), VerbsBench(process)
    steps = [one.step for one in program.steps]
    assert {step.name for step in steps} == set(codes.VERB_NAMES.values()) - {
        "open_context",
        *EXTENDED,
        *(name for name in codes.VERB_NAMES.values() if name.startswith("get_")),
    }
    verbs = prepared(process, program)
    held = objects(machine)
    before = bench.verbs()
    taken = verbs.take(steps, Window(3, 2))
    assert (taken.count, taken.steps, len(taken.samples)) == (3, len(steps), 3 * len(steps))
    assert objects(machine) == held
    found = bench.commands_after(before, 2 * len(steps), taken, len(steps))
    assert found is not None
    check_commands(program, [one.names for one in found])
    assert all(len(one.took_ns) == len(one.asked_ns) == len(one.device_ns) == 3 for one in found)
    # Another verb among them, and nothing can be said.
    assert bench.commands_after(before + 1, 2 * len(steps), taken, len(steps)) is None
    verbs.close()
    bench.close()


def test_the_kernel_client_performs_the_same_and_leaves_nothing(
    machine: Machine, process: UserProcess
):
    program, bench = every_verb().for_client("kernel"), VerbsBench(process)
    steps = [one.step for one in program.steps]
    before = bench.verbs()
    taken = bench.take(program.setup, steps, Window(4, 1))
    assert (taken.count, taken.steps) == (4, len(steps))
    assert all(sample > 0 for sample in taken.samples)
    untimed = len(program.setup) + len(steps)
    found = bench.commands_after(before, untimed, taken, len(steps))
    assert found is not None
    check_commands(program, [one.names for one in found])
    assert objects(machine) == 0
    bench.close()


def test_what_the_journal_has_forgotten_is_left_out_by_whole_passes(process: UserProcess):
    program, bench = control_mix(), VerbsBench(process)
    steps = [one.step for one in program.steps]
    before = bench.verbs()
    taken = bench.take(program.setup, steps, Window(300))
    found = bench.commands_after(before, len(program.setup), taken, len(steps))
    assert found is not None
    passes = {len(one.took_ns) for one in found}
    assert len(passes) == 1
    assert 100 < passes.pop() < 300
    assert [name for one in found for name in one.names].count("SW2HW_MPT") == 3
    bench.close()


@pytest.mark.parametrize("memory", ["arena", "private"])
def test_registrations_of_a_users_memory(machine: Machine, process: UserProcess, memory: str):
    program = registration(3 << 20)
    verbs = UserVerbs(process)
    region = Region(process, memory, 3 << 20)
    verbs.registers[REGION] = region.address
    verbs.run(program.setup)
    taken = verbs.take([one.step for one in program.steps], Window(2))
    assert taken.count == 2
    verbs.close()
    region.close()
    assert objects(machine) == 0


def test_a_block_ends_when_its_time_is_up(process: UserProcess):
    program, bench = control_mix(), VerbsBench(process)
    steps = [one.step for one in program.steps]
    assert bench.take(program.setup, steps, Window(1_000, 0, 1)).count == 1
    verbs = prepared(process, program)
    assert verbs.take(steps, Window(1_000, 0, 1)).count == 1
    verbs.close()
    bench.close()


def test_a_refused_verb_ends_the_run_and_is_told(machine: Machine, process: UserProcess):
    wrong = VerbStep(codes.IOCTL_DEALLOC_PD, Object(12345))
    bench, verbs = VerbsBench(process), UserVerbs(process)
    with pytest.raises(VerbFailed, match="dealloc_pd was refused: errno 22") as caught:
        verbs.do(wrong)
    assert caught.value.errno == errno.EINVAL
    words = "dealloc_pd was refused: errno 22, Invalid argument: the context has no object 12345"
    with pytest.raises(VerbFailed, match=words):
        bench.take([VerbStep(codes.IOCTL_ALLOC_PD, None)], [wrong], Window(1))
    # One that is refused after others were timed leaves no times.
    steps = [VerbStep(codes.IOCTL_QUERY_DEVICE, None), VerbStep(codes.IOCTL_QUERY_PORT, NO_PORT)]
    with pytest.raises(VerbFailed, match=r"query_port was refused: errno 22, .*ports 1 to 2"):
        bench.take([], steps, Window(5))
    assert objects(machine) == 0
    verbs.close()
    bench.close()


@pytest.mark.parametrize(("length", "words"), [(4 << 10, None), (16 << 10, IN_ONE_PIECE)])
def test_memory_that_is_not_to_be_had_in_one_piece_is_told_so(length: int, words: str | None):
    scattered = Machine(KernelSettings(fragmentation=1), in_process=True)
    scattered.start_hca()
    program = registration(length).for_client("kernel")
    plan = (program.setup, [one.step for one in program.steps], Window(2))
    with UserProcess.in_process(scattered.connect_in_process("verbs client")) as process:
        bench = VerbsBench(process)
        if words is None:
            assert bench.take(*plan).count == 2
        else:
            with pytest.raises(VerbFailed, match=words) as caught:
                bench.take(*plan)
            assert caught.value.errno == errno.ENOMEM
        assert objects(scattered) == 0
        bench.close()
    scattered.close()


ALLOC, CREATE_AH = VerbStep(codes.IOCTL_ALLOC_PD, None, (), ((0, 20),)), codes.IOCTL_CREATE_AH
ADDRESS = CreateAh(0, 1, 1, 0, 0, 0, 0, b"", 0, 0, 0, 0)


@pytest.mark.parametrize(
    "step",
    [
        # An answer without such a field, or without any; a field that holds bytes.
        VerbStep(codes.IOCTL_QUERY_PKEY, PortQuery(1), (), ((5, 0),)),
        VerbStep(codes.IOCTL_MODIFY_PORT, ModifyPort(1, 0, 0, 0), (), ((0, 0),)),
        VerbStep(codes.IOCTL_QUERY_GID, PortQuery(1), (), ((0, 0),)),
        # A number where bytes are due, and one that is too large for its field.
        VerbStep(codes.IOCTL_ATTACH_MCAST, Multicast(0, b"", 0), ((1, 20),)),
        VerbStep(codes.IOCTL_QUERY_PORT, PortQuery(1), ((0, 21),)),
    ],
)
def test_a_program_whose_registers_do_not_fit_ends_and_harms_nobody(
    machine: Machine, process: UserProcess, step: VerbStep
):
    bench = VerbsBench(process)
    guid = VerbStep(codes.IOCTL_QUERY_DEVICE, None, (), ((1, 21),))
    with pytest.raises(NtStatusError) as caught:
        bench.take([ALLOC, guid], [step], Window(1))
    assert caught.value.status == STATUS_INVALID_PARAMETER
    assert objects(machine) == 0
    bench.close()


QUERY = pack_program([VerbStep(codes.IOCTL_QUERY_DEVICE, None)])
LEAVING = pack_program([ALLOC, VerbStep(CREATE_AH, ADDRESS, ((0, 20),), ((0, 22),))])
OPENING = pack_program([VerbStep(codes.IOCTL_OPEN_CONTEXT, None)])
HUGE = pack_program([VerbStep(codes.IOCTL_REG_MR, RegMr(0, 0, LARGEST_REGION + 1, 0, 0))])
FROM_REGISTER = pack_program([VerbStep(codes.IOCTL_REG_MR, RegMr(0, 0, 1, 0, 0), ((2, 0),))])


@pytest.mark.parametrize(
    "plan",
    [
        b"no message",
        encode(VerbsRun(b"\xc1", QUERY, 1, 0, 1)),
        encode(VerbsRun(b"\x90", b"\x90", 1, 0, 1)),
        encode(VerbsRun(b"\x90", QUERY, 0, 0, 1)),
        encode(VerbsRun(b"\x90", QUERY, MOST_PASSES + 1, 0, 1)),
        encode(VerbsRun(b"\x90", QUERY, 1, MOST_PASSES + 1, 1)),
        encode(VerbsRun(HUGE, QUERY, 1, 0, 1)),
        encode(VerbsRun(b"\x90", FROM_REGISTER, 1, 0, 1)),
        encode(VerbsRun(b"\x90", LEAVING, 1, 0, 1)),
        encode(VerbsRun(OPENING, QUERY, 1, 0, 1)),
    ],
)
def test_a_plan_that_cannot_be_performed_is_refused(process: UserProcess, plan: bytes):
    with process.open_device(BENCHMARK_DEVICE) as device:
        with pytest.raises(NtStatusError) as caught:
            device.device_io_control(IOCTL_VERBS_RUN, plan, bytearray(4096))
        assert caught.value.status == STATUS_INVALID_PARAMETER


@pytest.mark.parametrize(
    ("data", "room", "status"),
    [
        (b"", 4096, STATUS_INVALID_PARAMETER),
        (bytes(9), 4096, STATUS_INVALID_PARAMETER),
        (bytes(8), 7, STATUS_BUFFER_TOO_SMALL),
    ],
)
def test_a_wrong_reading_of_the_journal(process: UserProcess, data: bytes, room: int, status: int):
    with process.open_device(BENCHMARK_DEVICE) as device:
        with pytest.raises(NtStatusError) as caught:
            device.device_io_control(IOCTL_COMMAND_JOURNAL, data, bytearray(room))
        assert caught.value.status == status
        answer = bytearray(8)
        assert device.device_io_control(IOCTL_COMMAND_JOURNAL, bytes(8), answer) == 8
        assert struct.unpack("=Q", answer)[0] >= 0
        plan = encode(VerbsRun(b"\x90", QUERY, 2, 0, 1))
        with pytest.raises(NtStatusError) as caught:
            device.device_io_control(IOCTL_VERBS_RUN, plan, bytearray(RUN_RESULT.size + 23))
        assert caught.value.status == STATUS_BUFFER_TOO_SMALL


def test_a_kernel_without_an_hca_has_no_verbs():
    machine = Machine(KernelSettings(hca=False), in_process=True)
    with (
        UserProcess.in_process(machine.connect_in_process("verbs client")) as process,
        process.open_device(BENCHMARK_DEVICE) as device,
    ):
        for code, data, status in (
            (IOCTL_COMMAND_JOURNAL, bytes(8), STATUS_NO_SUCH_DEVICE),
            (
                IOCTL_VERBS_RUN,
                encode(VerbsRun(b"\x90", QUERY, 1, 0, 1)),
                STATUS_OBJECT_NAME_NOT_FOUND,
            ),
        ):
            with pytest.raises(NtStatusError) as caught:
                device.device_io_control(code, data, bytearray(64))
            assert caught.value.status == status
    machine.close()
