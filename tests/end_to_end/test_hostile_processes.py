"""Processes that do what no honest one does: the kernel lives, forgets nothing, serves the others.

Rules: what a kernel may need for one of them is bounded here by figures, not by hope.
"""

import contextlib
import os
import resource
import signal
import socket
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq

from shared.envelope import (
    FLAG_INPUT_INLINE,
    FLAG_OUTPUT_INLINE,
    KIND_CREATE,
    KIND_CREATE_EVENT,
    KIND_DEVICE_CONTROL,
    KIND_ECHO,
    KIND_WAIT,
    MAX_PAYLOAD,
    WAIT_FOREVER,
    Header,
    make_header,
    parse_header,
)
from shared.ioctl_codes import COMPLETION_DEVICE, METHOD_BUFFERED, METHOD_NEITHER, noop_code
from shared.nt_status import STATUS_INSUFFICIENT_RESOURCES
from tests.end_to_end.conftest import state_of, wait_until
from tests.holder_driver import HOLD
from user_proc.errors import NtStatusError
from user_proc.process import UserProcess

pytestmark = pytest.mark.processes

ANSWER_MS = 10_000
MIB = 1 << 20
PAYLOAD = bytes(MAX_PAYLOAD)

ANOTHER_PROGRAM = (
    "import sys; from user_proc.process import UserProcess; "
    "process = UserProcess.connect(sys.argv[1]); print(process.session, flush=True); "
    "sys.stdin.read(); process.close()"
)


def memory(kernel: Any) -> int:
    """The resident bytes of a kernel."""
    pages = Path(f"/proc/{kernel.process.pid}/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def check_witness(kernel: Any) -> None:
    """Somebody else gets in, and is served at once."""
    began = time.monotonic()
    with UserProcess.connect(kernel.name) as process, process.open_device("noop") as device:
        output = bytearray(4)
        assert device.device_io_control(0x80012000, b"well", output) == 4
        assert output == b"well"
    assert time.monotonic() - began < 2


class Rogue:
    """A session whose sockets say what they like."""

    def __init__(self, kernel: Any) -> None:
        self.process = UserProcess.connect(kernel.name)
        self._paths = kernel.paths
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._sockets: list[zmq.Socket[bytes]] = []
        self._requests = 0

    def socket(self, **options: int) -> "zmq.Socket[bytes]":
        made = self._context.socket(zmq.DEALER)
        self._sockets.append(made)
        for name, value in {"LINGER": 0, "RCVTIMEO": ANSWER_MS, **options}.items():
            made.setsockopt(getattr(zmq, name), value)
        made.connect(self._paths.endpoint)
        return made

    def header(self, kind: int, thread: int, **fields: int) -> bytes:
        self._requests += 1
        values = {
            "session": self.process.session,
            "epoch": self.process.channel.epoch,
            "request_id": thread << 40 | self._requests,
        }
        return make_header(kind, thread=thread, **(values | fields))

    def call(
        self, made: "zmq.Socket[bytes]", kind: int, thread: int, payload: bytes = b"", **fields: int
    ) -> Header:
        lengths = {"input_length": len(payload), "flags": FLAG_INPUT_INLINE if payload else 0}
        header = self.header(kind, thread, **(lengths | fields))
        made.send_multipart([header, payload] if payload else [header])
        return parse_header(made.recv_multipart()[0])

    def close(self) -> None:
        self.process.close()
        for made in self._sockets:
            made.close(linger=0)
        self._context.term()


@pytest.fixture
def rogue(kernel: Any) -> Iterator[Rogue]:
    rogue = Rogue(kernel)
    yield rogue
    rogue.close()


# --- memory --------------------------------------------------------------------------------------


def test_answers_nobody_reads_need_bounded_memory(kernel: Any, rogue: Rogue):
    before = memory(kernel)
    lazy = {number: rogue.socket(RCVHWM=1, RCVBUF=4096, SNDHWM=4) for number in (20, 21, 22)}

    def flooded() -> bool:
        for number, made in 100 * list(lazy.items()):
            header = rogue.header(
                KIND_ECHO, number, flags=FLAG_INPUT_INLINE, input_length=len(PAYLOAD)
            )
            with contextlib.suppress(zmq.Again):
                made.send(header, zmq.SNDMORE | zmq.DONTWAIT)
                made.send(PAYLOAD, zmq.DONTWAIT)
        lost: int = kernel.state()["server"]["lost_answers"].get("peer full", 0)
        return lost > 1000

    wait_until(flooded)
    check_witness(kernel)
    assert memory(kernel) - before < 64 * MIB
    assert rogue.process.echo(b"still") == b"still"


def test_requests_that_wait_behind_another_need_bounded_memory(kernel: Any, rogue: Rogue):
    before = memory(kernel)
    for number in (20, 21, 22, 23):
        made = rogue.socket()
        event = rogue.call(made, KIND_CREATE_EVENT, number).file_handle
        made.send(rogue.header(KIND_WAIT, number, file_handle=event, information=WAIT_FOREVER))
        for _ in range(100):
            header = rogue.header(
                KIND_DEVICE_CONTROL, number, flags=FLAG_INPUT_INLINE, input_length=len(PAYLOAD)
            )
            made.send_multipart([header, PAYLOAD])
    wait_until(lambda: kernel.state()["server"]["refused"].get("over the limit", 0) > 0)
    check_witness(kernel)
    assert memory(kernel) - before < 64 * MIB


def test_completions_said_to_be_read_but_never_read_end_at_the_limit(kernel: Any, rogue: Rogue):
    before = memory(kernel)
    made = rogue.socket()
    handle = rogue.call(made, KIND_CREATE, 20, b"noop", control_code=3).file_handle
    taken, statuses = 0, []
    for _ in range(1500):
        answer = rogue.call(
            made,
            KIND_DEVICE_CONTROL,
            20,
            PAYLOAD,
            file_handle=handle,
            control_code=noop_code(METHOD_BUFFERED, COMPLETION_DEVICE),
            output_length=len(PAYLOAD),
            flags=FLAG_INPUT_INLINE | FLAG_OUTPUT_INLINE,
            sequence=taken,
        )
        taken = answer.sequence  # a lie: nothing is read
        statuses.append(answer.status)
    assert set(statuses[-500:]) == {STATUS_INSUFFICIENT_RESOURCES}
    check_witness(kernel)
    # What the completion socket takes, and all that is outstanding.
    assert memory(kernel) - before < (16 + 256) * MAX_PAYLOAD + 64 * MIB


def test_completions_nobody_can_read_cost_their_own_session_only(kernel: Any, rogue: Rogue):
    end = rogue.process._lifeline.completions
    with pytest.raises(BrokenPipeError):
        end.send(b"garbage")
    end.close()
    made = rogue.socket()
    handle = rogue.call(made, KIND_CREATE, 20, b"noop", control_code=3).file_handle
    code = noop_code(METHOD_BUFFERED, COMPLETION_DEVICE)
    statuses = [
        rogue.call(made, KIND_DEVICE_CONTROL, 20, file_handle=handle, control_code=code).status
        for _ in range(300)
    ]
    assert statuses[-1] == STATUS_INSUFFICIENT_RESOURCES
    assert kernel.state()["server"]["lost_answers"]["peer gone"] >= 200
    check_witness(kernel)
    assert rogue.process.echo(b"still") == b"still"


def test_a_kernel_without_memory_refuses_and_lives(kernel: Any):
    with contextlib.ExitStack() as stack:
        devices = []
        for _ in range(4):
            process = stack.enter_context(UserProcess.connect(kernel.name))
            devices.append(process.open_device("holder", overlapped=True))
        status = Path(f"/proc/{kernel.process.pid}/status").read_text()
        size = int(status.partition("VmSize:")[2].split()[0]) * 1024
        limits = resource.prlimit(kernel.process.pid, resource.RLIMIT_AS)
        resource.prlimit(kernel.process.pid, resource.RLIMIT_AS, (size + 40 * MIB, limits[1]))
        large = bytearray(15 * MIB)
        refusals = []
        for device in devices:
            try:
                device.start(HOLD, large, large)
            except NtStatusError as error:
                refusals.append(error.status)
        assert set(refusals) == {STATUS_INSUFFICIENT_RESOURCES}
        with pytest.raises(NtStatusError):
            process.allocate(100 * MIB)
        resource.prlimit(kernel.process.pid, resource.RLIMIT_AS, limits)
        check_witness(kernel)
    kernel.wait_for_sessions(0)


# --- what is handed over -------------------------------------------------------------------------


def test_a_lingering_socket_handed_over_holds_nobody(kernel: Any):
    # Its last descriptor is the kernel's, and closing it waits for a peer that does not read.
    with socket.socket() as server, contextlib.ExitStack() as peers:
        # A window that does not grow: what is left unsent must not go out by itself.
        server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        server.bind(("127.0.0.1", 0))
        server.listen()
        handed_over: list[tuple[socket.socket, socket.socket]] = []
        for _ in range(3):
            lingering = socket.create_connection(server.getsockname())
            peer, _ = server.accept()
            peers.enter_context(peer)
            linger = struct.pack("ii", 1, 60)
            lingering.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            lingering.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                while lingering.send(bytes(MIB)):
                    pass
            lifeline = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            peers.enter_context(lifeline)
            lifeline.connect(str(kernel.paths.lifeline))
            handed_over.append((lifeline, lingering))
        # Stopped, so that its descriptors are the last; once, because a stop ends such a wait.
        kernel.process.send_signal(signal.SIGSTOP)
        wait_until(lambda: state_of(kernel.process.pid) == "T")
        for lifeline, lingering in handed_over:
            socket.send_fds(lifeline, [b"garbage"], [lingering.fileno()])
            lingering.close()
        kernel.process.send_signal(signal.SIGCONT)
        wait_until(lambda: kernel.state()["lifelines"]["silent_connections"] == 3)
        for _ in range(5):
            check_witness(kernel)
        assert kernel.state()["lifelines"]["silent_connections"] == 3
    # The peers are gone, and so is what waited for them.
    wait_until(lambda: kernel.state()["lifelines"]["silent_connections"] == 0)


def test_a_program_that_execs_while_its_child_holds_the_lifeline_gives_its_session_back(
    kernel: Any, run: Callable[[str], Any]
):
    user = run(f"""
        import ctypes, select
        process = UserProcess.connect(name)
        device = process.open_device("holder", overlapped=True)
        held = [device.start(HOLD) for _ in range(5)]
        parent = os.pidfd_open(os.getpid())
        if ctypes.CDLL(None).fork() == 0:  # no hook of this library, or of Python, runs
            select.select([parent], [], [])
            os._exit(0)
        at("here")
        sys.stdin.readline()
        os.execv(sys.executable, [sys.executable, "-P", "-c", {ANOTHER_PROGRAM!r}, name])
    """)
    assert user.said() == "here"
    user.process.stdin.write("\n")
    user.process.stdin.flush()
    second = int(user.said())
    (session,) = kernel.wait_for_sessions(1)["server"]["sessions"]
    assert session["session"] == second
    assert "its process runs another program now" in kernel.log
    user.finish()


# --- ends of connections -------------------------------------------------------------------------


def test_after_close_the_kernel_writes_nothing_any_more(kernel: Any, run: Callable[[str], Any]):
    user = run(f"""
        SIZE = 24 << 20
        source, target = bytearray(b"x") * SIZE, bytearray(SIZE)
        code = noop_code({METHOD_NEITHER}, 0)
        for attempt in range(2):
            process = UserProcess.connect(name)
            device = process.open_device("noop")
            ends = []
            def work():
                try:
                    while True:
                        device.device_io_control(code, source, target)
                except ConnectionClosed:
                    ends.append(1)
            thread = threading.Thread(target=work)
            thread.start()
            while not target[SIZE // 2 + attempt]:  # in the midst of it
                pass
            process.close()
            target[:] = bytes(SIZE)  # its owner may free it, or use it for something else
            thread.join()
            with UserProcess.connect(name) as witness:  # behind whatever the kernel still does
                for _ in range(300):
                    witness.echo(b"")
            assert not any(target), "memory was written that had been given back"
            assert ends == [1]
            target[:] = bytes(SIZE)
        at("well")
    """)
    assert user.said() == "well"
    assert user.finish() == ""
    kernel.wait_for_sessions(0)


def test_a_connection_can_be_closed_while_every_thread_is_in_a_call(
    kernel: Any, run: Callable[[str], Any]
):
    user = run("""
        import random
        for attempt in range(4):
            process = UserProcess.connect(name)
            devices = [process.open_device("noop", overlapped=i % 2 == 1) for i in range(4)]
            event = process.create_event()
            ends = []
            calling = threading.Barrier(41)
            def work(seed):
                dice = random.Random(seed)
                devices[0].device_io_control(noop_code(0, 0), b"")
                calling.wait(10)
                try:
                    while True:
                        data = bytearray(dice.choice((0, 10, 5000)))
                        code = noop_code(dice.randrange(4), dice.randrange(3))
                        dice.choice(devices).device_io_control(code, bytes(len(data)), data)
                        if not dice.randrange(20):
                            event.wait(0.001)
                except ConnectionClosed:
                    ends.append("closed")
            threads = [threading.Thread(target=work, args=(seed,)) for seed in range(40)]
            for thread in threads: thread.start()
            calling.wait(10)
            process.close()
            for thread in threads: thread.join(10)
            assert ends == ["closed"] * 40, ends
        at("well")
    """)
    assert user.said() == "well"
    assert user.finish() == ""
    kernel.wait_for_sessions(0)


def test_a_program_can_be_interrupted_anywhere_and_goes_on(kernel: Any, run: Callable[[str], Any]):
    user = run("""
        import random, signal, time
        class Interruption(Exception): pass
        def interrupt(*_):
            if armed: raise Interruption
        armed = False
        signal.signal(signal.SIGALRM, interrupt)
        dice = random.Random(7)
        process = UserProcess.connect(name)
        noop, held = process.open_device("noop"), process.open_device("holder")
        started = process.open_device("holder", overlapped=True)
        event = process.create_event()
        hits = 0
        begin = time.monotonic()
        while (passed := time.monotonic() - begin) < 0.5 or (hits <= 50 and passed < 15):
            data = os.urandom(16) * dice.choice((1, 300, 5000))
            output = bytearray(len(data))
            what = dice.randrange(6)
            try:
                try:
                    armed = True
                    signal.setitimer(signal.ITIMER_REAL, dice.choice((2e-5, 5e-5, 1e-4, 3e-4)))
                    if what == 0: held.device_io_control(HOLD, data, output)
                    elif what == 1: event.wait()
                    elif what == 2: noop.device_io_control(noop_code(0, 1), data, output)
                    elif what == 3: noop.device_io_control(noop_code(3, 2), data, output)
                    elif what == 4: process.open_device("noop").close()
                    else: started.start(HOLD, data, output).wait()
                finally:
                    armed = False
            except Interruption:
                hits += 1
            signal.setitimer(signal.ITIMER_REAL, 0)
            if what == 5: started.cancel()
            output = bytearray(16)
            assert noop.device_io_control(noop_code(0, 0), data[:16], output) == 16
            assert output == data[:16]
        process.close()
        assert hits > 50, hits
        at("well")
    """)
    assert user.said() == "well"
    kernel.wait_for_sessions(0)


# --- over and over -------------------------------------------------------------------------------


@pytest.mark.stress
@pytest.mark.timeout(300)
def test_a_thousand_processes_killed_in_the_midst_of_everything_leave_nothing(kernel: Any):
    check_witness(kernel)
    before = kernel.wait_for_sessions(0)
    memory_before = memory(kernel)

    def live_and_die(number: int) -> None:
        rogue = Rogue(kernel)
        made = rogue.socket()
        handle = rogue.call(made, KIND_CREATE, 20, b"holder", control_code=3).file_handle
        rogue.process.allocate(1 << 20)
        event = rogue.call(made, KIND_CREATE_EVENT, 20).file_handle
        for _ in range(5):
            made.send(rogue.header(KIND_DEVICE_CONTROL, 20, file_handle=handle, control_code=HOLD))
        made.send(rogue.header(KIND_WAIT, 20, file_handle=event, information=WAIT_FOREVER))
        if number % 2:
            made.recv()
        os.kill(os.getpid(), 9)

    alive: set[int] = set()
    for number in range(1000):
        pid = os.fork()
        if pid == 0:
            try:
                live_and_die(number)
            finally:
                os._exit(1)
        alive.add(pid)
        while len(alive) >= 6:
            ended, status = os.wait()
            assert status == 9
            alive.discard(ended)
    for pid in alive:
        os.waitpid(pid, 0)
    after = kernel.wait_for_sessions(0)
    wait_until(lambda: kernel.state()["descriptors"] <= before["descriptors"])
    assert after["sessions_run_down"] - before["sessions_run_down"] == 1000
    assert after["arena_total"]["used"] == 0
    assert after["arena_places"]["used"] == 0
    assert [device["open_count"] for device in after["io_manager"]["devices"].values()] == [
        0
    ] * len(after["io_manager"]["devices"])
    assert memory(kernel) - memory_before < 32 * MIB


@pytest.mark.stress
@pytest.mark.timeout(300)
def test_twenty_thousand_of_everything_need_no_more_memory(kernel: Any):
    def rounds(count: int) -> None:
        with UserProcess.connect(kernel.name) as process, process.open_device("noop") as device:
            buffer = bytearray(64)
            for number in range(count):
                device.device_io_control(noop_code(number % 4, number % 3), buffer, buffer)
                process.open_device("noop", overlapped=number % 2 == 1).close()
                process.create_event().close()
        for _ in range(count // 20):
            with UserProcess.connect(kernel.name) as process:
                process.echo(b"x")

    rounds(4_000)
    before, state = memory(kernel), kernel.wait_for_sessions(0)
    rounds(20_000)
    after = kernel.wait_for_sessions(0)
    assert memory(kernel) - before < 16 * MIB
    assert after["dispatcher"]["pooled_greenlets"] <= state["dispatcher"]["pooled_greenlets"] + 8
    assert after["os_threads"] == state["os_threads"]
