"""Every other control code of every device, with inputs that are nearly right."""

import importlib
import pkgutil
from collections.abc import Container, Iterator
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import shared
from kernel_proc.scheduling.wait import delay_execution
from kernel_proc.scheduling.work_item import DELAYED_WORK_QUEUE, WorkItem
from shared import ioctl_codes as ioctls
from shared import verb_codes
from shared.fault_messages import FAULT_MESSAGES, Fault
from shared.fault_points import (
    FAULT_DEVICE,
    IOCTL_CLEAR_FAULTS,
    IOCTL_LIST_FAULTS,
    IOCTL_SET_FAULT,
)
from shared.ipoib_layout import (
    IOCTL_IPOIB_QUERY,
    IOCTL_IPOIB_RECEIVE,
    IOCTL_IPOIB_SEND,
    IOCTL_IPOIB_SET_ADDRESS,
    IPOIB_SEND_HEAD,
)
from shared.messages import SYSTEM_MESSAGES, BenchmarkRun, TransferRun, VerbsRun
from shared.verb_program import VerbStep, pack_program
from tests.hostile.machines import (
    IPOIB,
    STATUSES,
    User,
    answered,
    check_as_before,
    check_witness,
    holdings,
    make_machine,
    reset,
)
from tests.hostile.recipes import Recipe, Sent, kept, made, recipes
from user_proc.process import UserProcess

EXAMPLES = 5
MOST_WORK = 255  # operations of a run: larger numbers that a run may have are only slow
COUNTLESS = 1 << 24
ROOM = 4096
TAGS = {**SYSTEM_MESSAGES, **FAULT_MESSAGES}
PROGRAM = pack_program(
    [
        VerbStep(verb_codes.IOCTL_ALLOC_PD, None, (), ((0, 0),)),
        VerbStep(verb_codes.IOCTL_QUERY_DEVICE, None),
    ]
)


class Code(NamedTuple):
    """A code of a device and an input that is right: a message, bytes, or nothing."""

    name: str
    device: str
    code: int
    valid: Any = None
    room: int = ROOM
    runs: bool = False  # kernel code works as long as the input says
    statuses: Container[int] = STATUSES


OTHERS = [
    Code("inspect queue pair", "mthca0_control", verb_codes.IOCTL_INSPECT_QUEUE_PAIR,
         verb_codes.INSPECT_QUEUE_PAIR.pack(0x400)),
    Code("set port", "mthca0_control", verb_codes.IOCTL_SET_PORT,
         verb_codes.SET_PORT.pack(2, verb_codes.PortSetting.PKEY, 3, 0x8001)),
    Code("benchmark", "benchmark", ioctls.IOCTL_BENCHMARK_RUN,
         BenchmarkRun("irp", 1, 64, 8, 2, 1), runs=True),
    Code("benchmark of memory", "benchmark", ioctls.IOCTL_BENCHMARK_RUN,
         BenchmarkRun("floor_private_copy", 0, 64, 8, 2, 1), runs=True),
    Code("benchmark in depth", "benchmark", ioctls.IOCTL_BENCHMARK_RUN,
         BenchmarkRun("irp", 2, 64, 16, 2, 4), runs=True),
    Code("counters", "benchmark", ioctls.IOCTL_QUERY_COUNTERS),
    Code("trace off", "benchmark", ioctls.IOCTL_TRACE_CONTROL, bytes(4)),
    Code("trace fetched", "benchmark", ioctls.IOCTL_TRACE_FETCH),
    Code("verbs run", "benchmark", ioctls.IOCTL_VERBS_RUN,
         VerbsRun(PROGRAM, PROGRAM, 2, 1, 10**9), runs=True),
    Code("journal", "benchmark", ioctls.IOCTL_COMMAND_JOURNAL),
    Code("transfer run", "benchmark", ioctls.IOCTL_TRANSFER_RUN,
         TransferRun("post_to_poll", 64, 8, 2, 1, 1, 0, 4), runs=True),
    Code("transfer run in depth", "benchmark", ioctls.IOCTL_TRANSFER_RUN,
         TransferRun("msg_rate", 64, 32, 16, 16, 4, 0, 4), runs=True),
    Code("set a fault", FAULT_DEVICE, IOCTL_SET_FAULT,
         Fault("page-lock-fails", nth=3, session=4_000_000), 65536),
    Code("clear faults", FAULT_DEVICE, IOCTL_CLEAR_FAULTS, b"page-lock-fails", 65536),
    Code("list faults", FAULT_DEVICE, IOCTL_LIST_FAULTS, None, 65536),
    Code("ipoib query", "ipoib0", IOCTL_IPOIB_QUERY),
    Code("ipoib address", "ipoib0", IOCTL_IPOIB_SET_ADDRESS, bytes((10, 0, 0, 1))),
    Code("ipoib send", "ipoib0", IOCTL_IPOIB_SEND,
         IPOIB_SEND_HEAD.pack(bytes((10, 0, 0, 2)), 0x0800) + bytes(range(40))),
    Code("ipoib receive", "ipoib1", IOCTL_IPOIB_RECEIVE),
]  # fmt: skip


def noop_codes() -> Iterator[Code]:
    """Every code of the no-op devices; a failing one has its status as input."""
    for method in range(4):
        for completion in range(3):
            made_of = {
                "touch": ioctls.noop_code(method, completion),
                "ignore": ioctls.noop_code(method, completion, touch=False),
                "fail": ioctls.noop_fail_code(method, completion),
                "fast": ioctls.noop_fast_code(method, completion),
            }
            if completion:
                made_of["blocking"] = ioctls.noop_blocking_code(method, completion)
            for word, code in made_of.items():
                device = "noop_fast" if word == "fast" else "noop"
                valid = b"\x0d\x00\x00\xc0" if word == "fail" else bytes(range(64))
                name = f"{device} {word} {method} {completion}"
                statuses = range(1 << 32) if word == "fail" else STATUSES  # it is the input's
                yield Code(name, device, code, valid, 64, False, statuses)


NOOPS = list(noop_codes())


class Scene:
    """A machine, an attacker with every device open, and a witness."""

    def __init__(self) -> None:
        self.machine = make_machine(driver=(IPOIB,))
        self.attacker = User(self.machine, "attacker")
        self.other = User(self.machine, "witness")
        self.witness = self.other.verbs()
        for one in (*OTHERS, *NOOPS):
            self.ask(one, made(fields_of(one.valid), one.room, [], {}))
        check_witness(self.machine, self.witness)
        self.settle()
        self.before = holdings(self.machine)

    def ask(self, one: Code, sent: Sent) -> bytes | None:
        """Send one input by a file of its own."""
        with self.attacker.process.open_device(one.device, overlapped=True) as device:
            return answered(device, one.code, sent, one.statuses)

    def settle(self) -> None:
        """Let what goes on by itself end: packets nobody waits for, faults."""
        with self.attacker.process.open_device(FAULT_DEVICE, overlapped=True) as device:
            assert answered(device, IOCTL_CLEAR_FAULTS, Sent(b"", 65536)) is not None
        self.attacker.door.run(lambda: False, 10_000_000_000)

    def check(self) -> None:
        """Nothing is left, and the witness is served by a device and by the HCA."""
        self.settle()
        with self.other.process.open_device("noop") as noop:
            output = bytearray(4)
            assert noop.device_io_control(ioctls.noop_code(0, 0), b"well", output) == 4
            assert output == b"well"
        check_as_before(self.machine, self.witness, self.before)


@pytest.fixture(scope="module")
def scene() -> Iterator[Scene]:
    built = Scene()
    yield built
    built.attacker.close()
    built.other.close()
    assert holdings(built.machine)["sessions"] == []
    assert built.machine.processor.run_thread(built.machine.drivers.unload_all, 5_000_000_000)
    built.machine.close()


def fields_of(valid: Any) -> Any:
    """A message as a list, anything else as it is."""
    return [*TAGS[type(valid)], *valid] if type(valid) in TAGS else valid


def tamed(recipe: Recipe) -> Recipe:
    """A run that is possible is short."""
    return [
        [*step[:2], step[2] % MOST_WORK]
        if step[0] in ("set", "near") and type(step[2]) is int and MOST_WORK < step[2] < COUNTLESS
        else step
        for step in recipe
    ]


def send(scene: Scene, one: Code, recipe: Recipe) -> None:
    """Send one input; whatever is said to it must be an answer."""
    wanted = tamed(recipe) if one.runs else recipe
    scene.ask(one, made(fields_of(one.valid), one.room, wanted, {}))


def run(scene: Scene, codes: list[Code], examples: int) -> None:
    """Send hostile inputs of some codes; nothing of them stays."""

    @settings(max_examples=examples)
    @given(batch=st.lists(st.tuples(st.sampled_from(codes), recipes), min_size=3, max_size=6))
    def send_some(batch: list[tuple[Code, Recipe]]) -> None:
        for one, recipe in batch:
            send(scene, one, recipe)

    try:
        send_some()
    finally:
        scene.settle()
    scene.check()


def test_every_code_there_is_is_sent():
    """A new code of any device has to be put here."""
    modules = [
        importlib.import_module(f"shared.{one.name}")
        for one in pkgutil.iter_modules(shared.__path__)
    ]
    there = {
        value
        for module in modules
        for name, value in vars(module).items()
        if name.startswith("IOCTL_") and isinstance(value, int)
    }
    here = {one.code for one in OTHERS} | {verb_codes.IOCTL_RESET_HCA} | set(verb_codes.VERB_NAMES)
    assert there == here
    assert len({one.code for one in NOOPS}) == len(NOOPS) == 4 * (3 * 4 + 2)


def test_a_worker_more_is_nothing_left(scene: Scene):
    """Ports that change have both kernel clients told at once, by a worker each."""
    processor = scene.machine.processor
    items = [WorkItem(processor, lambda *_: delay_execution(processor, 1)) for _ in range(2)]
    for item in items:
        item.insert()
    scene.check()
    assert processor.work_queues is not None
    assert len(processor.work_queues.queues[DELAYED_WORK_QUEUE].workers) > 1


@pytest.mark.parametrize("one", OTHERS, ids=lambda one: one.name)
def test_what_is_nearly_an_input(scene: Scene, one: Code):
    run(scene, [one], EXAMPLES)


def test_what_is_nearly_a_no_operation(scene: Scene):
    run(scene, NOOPS, 40)


@pytest.mark.stress
@pytest.mark.timeout(900)
@pytest.mark.parametrize("one", [*OTHERS, *NOOPS], ids=lambda one: one.name)
def test_what_is_nearly_an_input_for_long(scene: Scene, one: Code):
    run(scene, [one], 1000)


FOR_ALL = [found for found in kept("verbs") if not found["verb"]]


@pytest.mark.parametrize("found", FOR_ALL, ids=lambda found: found["name"])
def test_what_was_kept(scene: Scene, found: dict[str, Any]):
    for one in (*OTHERS, *NOOPS):
        send(scene, one, found["recipe"])
    scene.check()


def test_a_reset_is_a_reset_whatever_comes_with_it():
    machine = make_machine()
    user = User(machine, "attacker")
    code, room = verb_codes.IOCTL_RESET_HCA, verb_codes.VERB_RESULT.size
    with user.process.open_device(verb_codes.HCA_CONTROL_DEVICE, overlapped=True) as control:
        for data in (b"", b"\xc1", bytes(4096)):
            for length in (0, room - 1, room, 4096):
                output = answered(control, code, Sent(data, length))
                assert (output is None) == (length < room)
    reset(user)
    user.close()
    fresh = User(machine, "another")
    check_witness(machine, fresh.verbs())
    fresh.close()
    assert holdings(machine)["sessions"] == []
    machine.close()


def test_no_device_takes_a_code_of_another(scene: Scene):
    """Every code at every device that is not its own: refused, as an unknown one."""
    own = {one.device: set[int]() for one in OTHERS} | {"noop": set(), "noop_fast": set()}
    own |= {verb_codes.HCA_DEVICE: set(verb_codes.VERB_NAMES)}
    own[verb_codes.HCA_CONTROL_DEVICE] = {verb_codes.IOCTL_RESET_HCA}
    for one in (*OTHERS, *NOOPS):
        own[one.device].add(one.code)
    own["ipoib0"] = own["ipoib1"] = own["ipoib0"] | own["ipoib1"]
    own["noop"] = own["noop_fast"] = own["noop"] | own["noop_fast"]
    every = set().union(*own.values())
    count = 0
    process: UserProcess = scene.attacker.process
    for name, codes in own.items():
        with process.open_device(name, overlapped=True) as device:
            for code in every - codes:
                assert answered(device, code, Sent(bytes(64), 2048)) is None
                count += 1
    print(f"{count} codes at devices that have others")
    scene.check()
