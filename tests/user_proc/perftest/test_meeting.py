"""What a client says when the server ends, and its kernel with it: one cause, one sentence."""

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from user_proc.errors import KernelDied
from user_proc.perftest.meeting import join
from user_proc.perftest.peer_link import PeerLink
from user_proc.perftest.tool_errors import PeerGone
from user_proc.verbs.pyverbs_error import PyverbsRDMAError


@contextmanager
def server(leave: threading.Event) -> Iterator[int]:
    """A server that meets one client and ends when it is told to."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def meet() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(json.dumps({"kernel": "meeting"}).encode() + b"\n")
                leave.wait(10)

        thread = threading.Thread(target=meet)
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            leave.set()
            thread.join(10)


FAILURES = (PyverbsRDMAError("Failed to poll CQ", 5), KernelDied("the kernel has ended"))


@pytest.mark.parametrize("failure", FAILURES, ids=("verbs", "kernel"))
def test_a_server_that_takes_its_kernel_along_is_the_cause(failure: Exception):
    leave = threading.Event()

    def work(link: PeerLink, kernel: str, is_own: bool) -> None:
        threading.Timer(0.05, leave.set).start()  # verbs tell of it first
        raise failure

    with server(leave) as port, pytest.raises(PeerGone, match="ended before the run was over"):
        join(None, "127.0.0.1", port, {}, work)


@pytest.mark.parametrize("failure", FAILURES, ids=("verbs", "kernel"))
def test_with_a_server_that_stays_the_failure_is_what_it_is(failure: Exception):
    def work(link: PeerLink, kernel: str, is_own: bool) -> None:
        raise failure

    with server(threading.Event()) as port, pytest.raises(type(failure)) as raised:
        join(None, "127.0.0.1", port, {}, work)
    assert raised.value is failure
