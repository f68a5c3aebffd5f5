"""The lifeline: Hello and Welcome, arenas by descriptor, and every way it can go wrong."""

import _thread
import os
import resource
import socket
import stat
import threading
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from shared import connection_file as cf
from shared.envelope import VERSION
from shared.message_codec import encode
from shared.messages import (
    AllocateArena,
    ArenaGranted,
    ArenaMapped,
    Done,
    DoorbellsGranted,
    FreeArena,
    Hello,
    Refused,
)
from shared.nt_status import (
    STATUS_INSUFFICIENT_RESOURCES,
    STATUS_QUOTA_EXCEEDED,
    STATUS_TOO_MANY_SESSIONS,
)
from tests.user_proc.interrupting import interrupted_at
from user_proc.errors import (
    ConnectionClosed,
    ForkedProcess,
    KernelDied,
    KernelNotResponding,
    KernelNotRunning,
    KernelRefused,
    ProcessExhausted,
    ProtocolError,
    RuntimeFolderUnusable,
)
from user_proc.memory.private_memory import open_own_memory
from user_proc.transport import lifeline_channel, whole_call
from user_proc.transport.lifeline_channel import LifelineChannel


def connect(paths: Any) -> LifelineChannel:
    memory = open_own_memory()
    try:
        return LifelineChannel(paths, memory)
    finally:
        memory.close()


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def serve(fake: Any, **answers: Any) -> None:
    """Answer each message class by name with a function from message to answers."""
    fake.on_lifeline = lambda message: answers[type(message).__name__](message)


def done(message: Any) -> list[Any]:
    return [(encode(Done(message.request, 0, "")), [])]


def test_hello_and_welcome(fake: Any, lifeline: Any):
    hello = fake.lifeline_messages.get(timeout=5)
    assert isinstance(hello, Hello)
    assert hello.min_version <= hello.max_version
    assert lifeline.welcome == fake.welcome
    assert lifeline.watch.pid == os.getpid()
    lifeline.watch.look()


def test_descriptors_are_not_inherited_by_programs(lifeline: Any):
    for descriptor in (lifeline._socket.fileno(), lifeline.watch.pidfd):
        assert not os.get_inheritable(descriptor)


def test_arena_goes_round(fake: Any, lifeline: Any, tmp_path: Any):
    path = tmp_path / "segment"
    path.write_bytes(b"segment")
    with open(path, "rb") as file:
        serve(
            fake,
            AllocateArena=lambda m: [
                (encode(ArenaGranted(m.request, 4, m.length)), [file.fileno()])
            ],
            ArenaMapped=done,
            FreeArena=done,
        )
        arena, descriptor = lifeline.allocate_arena(4096)
    assert arena == 4
    assert os.read(descriptor, 16) == b"segment"
    assert not os.get_inheritable(descriptor)
    os.close(descriptor)
    lifeline.arena_mapped(arena, 0x7F0000000000)
    lifeline.free_arena(arena)
    messages = [fake.lifeline_messages.get(timeout=5) for _ in range(4)][1:]
    assert messages == [
        AllocateArena(1, 4096),
        ArenaMapped(2, 4, 0x7F0000000000),
        FreeArena(3, 4),
    ]


@pytest.mark.parametrize("descriptors", [3, 2, 4])
def test_doorbells_come_with_three_descriptors_or_not_at_all(
    fake: Any, lifeline: Any, descriptors: int
):
    parts = [os.eventfd(0) for _ in range(descriptors)]
    serve(
        fake,
        OpenDoorbells=lambda m: [(encode(DoorbellsGranted(m.request, 5, 1 << 20, 4096)), parts)],
    )
    before = open_descriptors()
    if descriptors == 3:
        opened = lifeline.open_doorbells()
        assert (opened.number, opened.length, opened.status_length) == (5, 1 << 20, 4096)
        handed = [opened.doorbell_fd, opened.status_fd, opened.poke_fd]
        assert len(set(handed) - set(parts)) == 3
        for descriptor in handed:
            os.close(descriptor)
    else:
        with pytest.raises(ProtocolError, match=f"doorbells with {descriptors} descriptors"):
            lifeline.open_doorbells()
    assert open_descriptors() == before
    for descriptor in parts:
        os.close(descriptor)


def test_refusal_of_a_request_says_why(fake: Any, lifeline: Any):
    serve(
        fake,
        AllocateArena=lambda m: [
            (encode(Done(m.request, STATUS_QUOTA_EXCEEDED, "the quota is 1 MiB")), [])
        ],
        FreeArena=done,
    )
    with pytest.raises(KernelRefused, match=r"the quota is 1 MiB \[STATUS_QUOTA_EXCEEDED\]"):
        lifeline.allocate_arena(1 << 30)
    lifeline.free_arena(1)


@pytest.mark.parametrize("descriptors", [0, 2])
def test_wrong_number_of_descriptors(fake: Any, lifeline: Any, descriptors: int):
    with open(os.devnull) as file:
        passed = [file.fileno()] * descriptors
        serve(
            fake,
            AllocateArena=lambda m: [(encode(ArenaGranted(m.request, 4, m.length)), passed)],
        )
        before = open_descriptors()
        with pytest.raises(ProtocolError, match=f"in {descriptors} descriptors"):
            lifeline.allocate_arena(4096)
        assert open_descriptors() == before


def test_answer_to_an_interrupted_request_is_dropped_and_its_arena_given_back(
    fake: Any, lifeline: Any
):
    with open(os.devnull) as file:
        serve(
            fake,
            AllocateArena=lambda m: [],
            ArenaMapped=lambda m: [
                (encode(ArenaGranted(1, 77, 4096)), [file.fileno()]),
                *done(m),
            ],
            FreeArena=done,
        )
        lifeline._last_request = 0
        lifeline._send(AllocateArena(1, 4096), ())  # and its caller is gone
        lifeline._last_request = 1
        before = open_descriptors()
        lifeline.arena_mapped(5, 4096)
        assert open_descriptors() == before
    messages = [fake.lifeline_messages.get(timeout=5) for _ in range(4)]
    assert messages[3] == FreeArena(3, 77)


def test_an_arena_whose_caller_is_interrupted_anywhere_is_given_back(fake: Any, lifeline: Any):
    """Also one that had been granted, and its descriptor received, when the interruption came."""
    granted: list[int] = []
    freed: list[int] = []
    with open(os.devnull) as file:

        def grant(message: Any) -> list[Any]:
            granted.append(len(granted) + 1)
            answer = ArenaGranted(message.request, granted[-1], message.length)
            return [(encode(answer), [file.fileno()])]

        serve(fake, AllocateArena=grant, FreeArena=lambda m: (freed.append(m.arena), done(m))[1])
        before = open_descriptors()
        files = ("transport/lifeline_channel.py", "transport/whole_call.py")
        taken: list[tuple[int, int]] = []
        step = 0
        while interrupted_at(step, lambda: taken.append(lifeline.allocate_arena(4096)), *files):
            step += 1
        assert step > 5
        os.close(taken[0][1])
        lifeline.free_arena(taken[0][0])
        ticks = threading.Event()
        for _ in range(1000):
            if sorted(freed) == granted and open_descriptors() == before:
                break
            ticks.wait(0.01)
        assert sorted(freed) == granted
        assert open_descriptors() == before


@pytest.mark.parametrize(
    ("welcome", "error", "reason"),
    [
        (Refused(STATUS_TOO_MANY_SESSIONS, "full"), KernelRefused, "the kernel refused: full"),
        (None, KernelDied, "has closed this session"),
        (Done(1, 0, ""), ProtocolError, "answered Hello with Done"),
        (b"\xff\xff", ProtocolError, "malformed"),
        (b"\x91" * 70000, ProtocolError, "it was cut"),
    ],
)
def test_no_welcome(fake: Any, welcome: Any, error: type[Exception], reason: str):
    fake.welcome = welcome
    before = open_descriptors()
    with pytest.raises(error, match=reason):
        connect(fake.paths)
    assert open_descriptors() <= before + 1  # the fake's end may still be open


def test_foreign_version(fake: Any):
    fake.welcome = fake.welcome._replace(protocol=99)
    with pytest.raises(ProtocolError, match="version 99"):
        connect(fake.paths)


@pytest.mark.parametrize("answer", [encode(Hello(1, 1, "x")), b"junk"])
def test_unexpected_answer(fake: Any, lifeline: Any, answer: bytes):
    fake.on_lifeline = lambda message: [(answer, [])]
    with pytest.raises(ProtocolError):
        lifeline.arena_mapped(1, 4096)


def test_done_where_an_arena_is_due(fake: Any, lifeline: Any):
    serve(fake, AllocateArena=done)
    with pytest.raises(ProtocolError, match="AllocateArena with Done"):
        lifeline.allocate_arena(4096)


def test_length_beyond_the_message_is_a_value_error(fake: Any, lifeline: Any):
    serve(fake, FreeArena=done)
    with pytest.raises(ValueError, match="out of range"):
        lifeline.allocate_arena(1 << 64)
    lifeline.free_arena(1)


def test_kernel_that_does_not_answer(fake: Any, monkeypatch: pytest.MonkeyPatch, lifeline: Any):
    lifeline._socket.settimeout(0.05)
    with pytest.raises(KernelNotResponding):
        lifeline.arena_mapped(1, 4096)
    serve(fake, ArenaMapped=done)
    lifeline._socket.settimeout(5)
    lifeline.arena_mapped(1, 4096)


def test_end_of_the_session(fake: Any, lifeline: Any):
    fake.hang_up()
    with pytest.raises(KernelDied, match="has closed this session"):
        lifeline.arena_mapped(1, 4096)
    with pytest.raises(KernelDied):
        lifeline.watch.look()
    lifeline.free_arena(1)  # it went with the session


def test_to_the_end_means_until_the_kernel_has_hung_up(fake: Any, lifeline: Any):
    with ThreadPoolExecutor(1) as pool:
        closing = pool.submit(lifeline.close, to_the_end=True)
        assert closing.result(timeout=5) is True  # the fake hangs up at the empty packet
    assert lifeline._socket.fileno() < 0


def test_a_kernel_that_does_not_hang_up_is_not_known_to_be_done(
    fake: Any, lifeline: Any, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(lifeline_channel, "_END_SECONDS", 0.05)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        theirs.shutdown(socket.SHUT_WR)  # it ends the session, but has not run it down
        monkeypatch.setattr(lifeline, "_socket", ours)
        monkeypatch.setattr(lifeline.watch, "_lifeline", ours)
        assert lifeline.close(to_the_end=True) is False


@pytest.mark.parametrize("hello_is_read", [False, True])
def test_who_is_refused_unheard_is_told_why(hello_is_read: bool):
    refused = Refused(STATUS_INSUFFICIENT_RESOURCES, "too many of you")
    paths = cf.instance_paths(f"busy-{uuid.uuid4().hex[:8]}")
    cf.prepare_folder(paths)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(paths.lifeline))
        listener.listen()
        cf.write_record(paths, cf.own_record(paths.name, VERSION))
        for early in (False, True):

            def refuse(early: bool = early) -> None:
                connection, _ = listener.accept()
                with connection:
                    if not early:
                        connection.recv(1 << 16, socket.MSG_PEEK)  # it is here, but not taken
                        if hello_is_read:
                            connection.recv(1 << 16)
                    connection.send(encode(refused))

            thread = threading.Thread(target=refuse)
            thread.start()
            memory = open_own_memory()
            with pytest.raises(KernelRefused, match="too many of you"):
                LifelineChannel(paths, memory)
            memory.close()
            thread.join(5)


def test_close_ends_a_wait_in_another_thread(fake: Any, lifeline: Any):
    asked = threading.Event()
    fake.on_lifeline = lambda message: (asked.set(), [])[1]
    with ThreadPoolExecutor(1) as pool:
        wait = pool.submit(lifeline.arena_mapped, 1, 4096)
        assert asked.wait(5)
        lifeline.close()
        with pytest.raises((ConnectionClosed, KernelDied)):
            wait.result(timeout=5)
    lifeline.close()
    with pytest.raises(ConnectionClosed):
        lifeline.arena_mapped(1, 4096)
    with pytest.raises(ConnectionClosed):
        lifeline.watch.look()


def test_another_process_is_refused(lifeline: Any, monkeypatch: pytest.MonkeyPatch):
    pid = os.getpid()
    with monkeypatch.context() as patch:
        patch.setattr(lifeline_channel.os, "getpid", lambda: pid + 1)
        with pytest.raises(ForkedProcess, match=r"call UserProcess\.connect again in the child"):
            lifeline.arena_mapped(1, 4096)


# What lies on the disk


def test_nothing_there():
    with pytest.raises(KernelNotRunning, match="softhca kernel start --name nobody"):
        connect(cf.instance_paths("nobody"))


def test_record_without_sockets_and_socket_without_listener():
    paths = cf.instance_paths("gone")
    cf.prepare_folder(paths)
    cf.write_record(paths, cf.own_record("gone", 1))
    with pytest.raises(KernelNotRunning):
        connect(paths)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as stale:
        stale.bind(str(paths.lifeline))
    assert stat.S_ISSOCK(paths.lifeline.stat().st_mode)
    with pytest.raises(KernelNotRunning):
        connect(paths)


def test_open_folder_and_broken_record():
    paths = cf.instance_paths("loose")
    cf.prepare_folder(paths)
    paths.connection_file.write_text("{")
    with pytest.raises(RuntimeFolderUnusable, match="is not a connection file"):
        connect(paths)
    paths.folder.chmod(0o777)
    with pytest.raises(RuntimeFolderUnusable, match="chmod 700"):
        connect(paths)


def test_an_arena_that_finds_no_descriptor_is_given_back(fake: Any, lifeline: Any):
    """The grant has come, its descriptor has not: the next request gives the arena back."""
    with open(os.devnull) as file:
        serve(
            fake,
            AllocateArena=lambda m: [
                (encode(ArenaGranted(m.request, 77, m.length)), [file.fileno()])
            ],
            ArenaMapped=done,
            FreeArena=done,
        )
        before = open_descriptors()
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        lowest = os.dup(0)
        os.close(lowest)
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, hard))
        try:
            with pytest.raises(ProcessExhausted, match="too many open files"):
                lifeline.allocate_arena(4096)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert open_descriptors() == before
        lifeline.arena_mapped(5, 4096)
    asked = [fake.lifeline_messages.get(timeout=5) for _ in range(4)]
    assert isinstance(asked[-1], FreeArena)
    assert asked[-1].arena == 77


def test_a_call_whose_thread_ends_without_a_word_is_made_by_its_caller(
    monkeypatch: pytest.MonkeyPatch,
):
    """So ends a thread that finds no memory for its first frame."""
    monkeypatch.setattr(whole_call, "_BEGIN_SECONDS", 0.01)
    monkeypatch.setattr(_thread, "start_new_thread", lambda routine, arguments: 1)
    made: list[int] = []
    assert whole_call.call_whole(lambda: made.append(1) or 5, made.append) == 5
    assert made == [1]


def test_a_call_whose_thread_begins_late_is_made_once(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(whole_call, "_BEGIN_SECONDS", 0.01)
    late: list[Callable[[], object]] = []
    monkeypatch.setattr(
        _thread, "start_new_thread", lambda routine, arguments: late.append(routine)
    )
    made: list[int] = []
    assert whole_call.call_whole(lambda: made.append(1) or 5, made.append) == 5
    late[0]()
    assert made == [1]
