"""A user process that ends, in any way and anywhere, takes what it held with it, nothing else."""

import os
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.end_to_end.conftest import KERNEL_WITH_HOLDER, Kernel, wait_until
from user_proc.process import UserProcess

pytestmark = pytest.mark.processes

POINTS = {
    "connected": """
        process = UserProcess.connect(name)
    """,
    "with an open device": """
        process = UserProcess.connect(name)
        device = process.open_device("noop")
        device.device_io_control(noop_code(0, 0), b"x", bytearray(1))
    """,
    "with arenas": """
        process = UserProcess.connect(name)
        buffers = [process.allocate(1 << 20) for _ in range(5)]
    """,
    "waiting for an event": """
        process = UserProcess.connect(name)
        event = process.create_event()
        threading.Thread(target=event.wait, daemon=True).start()
    """,
    "in a synchronous request": """
        process = UserProcess.connect(name)
        device = process.open_device("holder")
        threading.Thread(target=device.device_io_control, args=(HOLD,), daemon=True).start()
    """,
    "with overlapped requests": """
        process = UserProcess.connect(name)
        device = process.open_device("holder", overlapped=True)
        pending = [device.start(HOLD, b"data", bytearray(8)) for _ in range(10)]
    """,
    "in the middle of lifeline requests": """
        from shared.message_codec import encode
        from shared.messages import AllocateArena
        process = UserProcess.connect(name)
        for number in range(100, 110):
            process._lifeline._socket.send(encode(AllocateArena(number, 1 << 20)))
    """,
    "silent on the lifeline": """
        import socket
        from shared.connection_file import instance_paths
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        connection.connect(str(instance_paths(name).lifeline))
    """,
    "with many threads": """
        process = UserProcess.connect(name)
        device = process.open_device("holder", overlapped=True)
        def work():
            own = process.open_device("holder")
            device.start(HOLD)
            done.wait()
            own.device_io_control(HOLD)
        done = threading.Barrier(9)
        threads = [threading.Thread(target=work, daemon=True) for _ in range(8)]
        for thread in threads: thread.start()
        done.wait()
    """,
    "in the midst of calls": """
        process = UserProcess.connect(name)
        device = process.open_device("noop")
        def work():
            while True:
                device.device_io_control(noop_code(0, 2), b"x" * 4096, bytearray(4096))
        threading.Thread(target=work, daemon=True).start()
    """,
}


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kernel]:
    """One kernel for all these tests: what each leaves would add up."""
    folder = tmp_path_factory.mktemp("kernel")
    kernel = Kernel(folder, KERNEL_WITH_HOLDER, "--verifier")
    with UserProcess.connect(kernel.name):
        pass  # everything that is made at first use has been made
    kernel.wait_for_sessions(0)
    before = figures(kernel)
    yield kernel
    wait_until(lambda: more_than(before, kernel) == {})
    kernel.leave()
    assert kernel.process.returncode == 0


def figures(kernel: Any) -> dict[str, int]:
    """What a user process that has ended must not leave more of."""
    state = kernel.wait_for_sessions(0)
    devices = state["io_manager"]["devices"].values()
    return {
        "descriptors": state["descriptors"],
        "os_threads": state["os_threads"],
        "kernel threads": len(state["dispatcher"]["threads"]),
        "open files": sum(device["open_count"] for device in devices),
        "arena bytes": state["arena_total"]["used"],
        "silent connections": state["lifelines"]["silent_connections"],
        "bound sockets": state["server"]["bound_sockets"],
    }


def more_than(before: dict[str, int], kernel: Any) -> dict[str, int]:
    """What there is more of now; ZeroMQ closes a dead peer's socket a moment later."""
    return {what: count for what, count in figures(kernel).items() if count > before[what]}


@pytest.mark.parametrize("point", POINTS.values(), ids=list(POINTS))
@pytest.mark.parametrize("way", ["killed", "exec", "ended"])
def test_nothing_is_left_of_it(kernel: Any, run: Callable[[str], Any], point: str, way: str):
    before = figures(kernel)
    end = {
        "killed": "at('here'); stay()",
        "exec": "at('here'); sys.stdin.readline(); os.execv('/bin/cat', ['cat'])",
        "ended": "at('here'); sys.stdin.readline(); os._exit(0)",
    }[way]
    with UserProcess.connect(kernel.name) as witness, witness.open_device("noop") as device:
        user = run(strip(point) + "\n" + end)
        assert user.said() == "here"
        if way == "killed":
            user.process.kill()
        else:
            user.process.stdin.write("\n")
            user.process.stdin.flush()
        kernel.wait_for_sessions(1)
        assert device.device_io_control(0x80012000) >= 0  # everybody else goes on
        user.finish()
    wait_until(lambda: more_than(before, kernel) == {})


def strip(code: str) -> str:
    lines = [line for line in code.splitlines() if line.strip()]
    return "\n".join(line[8:] for line in lines)


def test_a_forked_child_keeps_no_session_alive(kernel: Any, run: Callable[[str], Any]):
    user = run("""
        process = UserProcess.connect(name)
        at("here")
        sys.stdin.readline()
        if os.fork() == 0:
            os.setsid()
            reader, writer = os.pipe()
            print(os.getpid(), flush=True)
            os.read(reader, 1)
        os._exit(0)
    """)
    assert user.said() == "here"
    kernel.wait_for_sessions(1)
    user.process.stdin.write("\n")
    user.process.stdin.flush()
    child = int(user.said())
    try:
        kernel.wait_for_sessions(0)
    finally:
        os.kill(child, signal.SIGKILL)


def test_fifty_sessions_that_connect_and_die_leave_nothing(kernel: Any, run: Callable[[str], Any]):
    before, ended = figures(kernel), kernel.log.count(" ended: its ")
    for _ in range(2):
        users = [
            run("""
                processes = [UserProcess.connect(name) for _ in range(5)]
                devices = [process.open_device("holder", overlapped=True) for process in processes]
                pending = [device.start(HOLD) for device in devices]
                buffers = [process.allocate(4096) for process in processes]
                at("here")
                stay()
            """)
            for _ in range(5)
        ]
        assert [user.said() for user in users] == ["here"] * 5
        kernel.wait_for_sessions(25)
        for user in users:
            user.process.kill()
        for user in users:
            user.finish()
        kernel.wait_for_sessions(0)
    wait_until(lambda: more_than(before, kernel) == {})
    assert kernel.log.count(" ended: its ") - ended == 50
