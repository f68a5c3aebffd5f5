"""Two processes move data through an HCA process: every opcode, private memory, deaths."""

import itertools
import json
import select
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.end_to_end.conftest import END_SECONDS, READY_USER, Kernel
from tests.end_to_end.traffic_end import End

pytestmark = pytest.mark.processes

START, BACK = 4096, 1 << 21


class Peer:
    """The other process."""

    def __init__(self, kernel: str, *options: str, module: str = "traffic_end") -> None:
        code = f"from tests.end_to_end.{module} import main; main()"
        self.process = READY_USER.start(code, kernel, *options, stderr=None)
        self.kernel = kernel
        self.qpn, self.buf, self.rkey = self.answer()

    def answer(self) -> Any:
        assert self.process.stdout is not None
        assert select.select([self.process.stdout], [], [], END_SECONDS)[0], "no word of the peer"
        return json.loads(self.process.stdout.readline())

    def tell(self, name: str, *arguments: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps([name, *arguments]) + "\n")
        self.process.stdin.flush()

    def ask(self, name: str, *arguments: Any) -> Any:
        self.tell(name, *arguments)
        return self.answer()

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(END_SECONDS)
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                stream.close()


Joined = tuple[End, Peer]


@pytest.fixture
def join(shared_kernel: Kernel) -> Iterator[Callable[..., Joined]]:
    """Connect this process with another one."""
    kernel = shared_kernel
    peers: list[Peer] = []
    ends: list[End] = []

    def make(*options: str, private: bool = False) -> Joined:
        end, peer = End(kernel.name, private), Peer(kernel.name, *options)
        ends.append(end)
        peers.append(peer)
        end.connect(peer.qpn)
        peer.ask("connect", end.qp.qp_num)
        return end, peer

    yield make
    for end in ends:
        end.context.close()
    for peer in peers:
        peer.end()


KINDS = ("shared", "private near", "private far", "private both")
OPCODES = ("SEND", "SEND_WITH_IMM", "RDMA_WRITE", "RDMA_WRITE_WITH_IMM", "RDMA_READ")
MESSAGES = list(itertools.product(KINDS, (0, 1, 64, 5000, 1_300_000), OPCODES))


@pytest.mark.parametrize("kinds", KINDS)
def test_every_opcode_between_two_processes(join: Callable[..., Joined], kinds: str):
    options = ["private"] if kinds in ("private far", "private both") else []
    end, peer = join(*options, private=kinds in ("private near", "private both"))
    for length, name in [(length, name) for kind, length, name in MESSAGES if kind == kinds]:
        takes_entry = name.startswith("SEND") or name.endswith("IMM")
        if name == "RDMA_READ":
            peer.ask("fill", length % 13, BACK, length)
        else:
            end.fill(length % 251 + len(name), START, length)
        if takes_entry:
            peer.ask("receive", BACK, length)
        end.send(name, START, length, (peer.buf + BACK, peer.rkey))
        assert end.statuses() == [0], (name, length)
        if takes_entry:
            assert peer.ask("statuses") == [0]
        assert bytes.fromhex(peer.ask("read", BACK, length)) == end.read(START, length)
    word = peer.ask("fill", 5, BACK, 8)
    end.send("ATOMIC_FETCH_AND_ADD", START, 8, (peer.buf + BACK, peer.rkey), operands=(3, 0))
    assert end.statuses() == [0]
    assert int.from_bytes(end.read(START, 8), "little") == word
    end.send(
        "ATOMIC_CMP_AND_SWP", START, 8, (peer.buf + BACK, peer.rkey),
        operands=((word + 3) % 2**64, 99),
    )  # fmt: skip
    assert end.statuses() == [0]
    assert int.from_bytes(bytes.fromhex(peer.ask("read", BACK, 8)), "little") == 99


def test_many_messages_arrive_in_order_each_once(join: Callable[..., Joined]):
    end, peer = join()
    count = 600
    for _ in range(count // 100):
        peer.tell("receive", BACK, 64, 100)
        for number in range(100):
            end.send("SEND", START, 8)
            if number % 50 == 49:
                assert end.statuses(50) == [0] * 50
        assert peer.answer() is None
        assert peer.ask("statuses", 100) == [0] * 100


@pytest.mark.parametrize("what", ["lkey", "rkey", "range"])
def test_bad_keys_end_on_the_right_side(join: Callable[..., Joined], what: str):
    end, peer = join()
    rkey = peer.rkey ^ (0x100 if what == "rkey" else 0)
    address = peer.buf + (BACK << 4 if what == "range" else 0)
    lkey = end.mr.lkey ^ 0x100 if what == "lkey" else None
    end.send("RDMA_WRITE", START, 64, (address, rkey), lkey=lkey)
    end.send("RDMA_WRITE", START, 64, (peer.buf, peer.rkey))
    assert end.statuses(2) == [4 if what == "lkey" else 10, 5]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_the_end_of_the_peer_is_an_error_and_no_more(join: Callable[..., Joined], number: int):
    end, peer = join()
    end.fill(1, START, 1 << 20)
    for _ in range(20):
        end.send("RDMA_WRITE", START, 1 << 20, (peer.buf, peer.rkey))
    peer.process.send_signal(number)
    if number == signal.SIGSTOP:  # it need not run for its memory to be written
        assert end.statuses(20) == [0] * 20
        peer.process.send_signal(signal.SIGCONT)
        return
    peer.process.wait(END_SECONDS)
    found = end.statuses(20)
    while found[-1] == 0:  # until the kernel has taken its queue pair away
        end.send("RDMA_WRITE", START, 64, (peer.buf, peer.rkey))
        found += end.statuses()
    assert len(found) >= 20
    failed = [status for status in found if status]
    assert failed[0] in (10, 12)  # its key was taken first, or nobody answers
    assert set(failed[1:]) <= {5}


def test_a_region_may_go_while_it_is_written(join: Callable[..., Joined]):
    end, peer = join("private")
    end.fill(1, START, 1 << 20)
    for _ in range(10):
        end.send("RDMA_WRITE", START, 1 << 20, (peer.buf, peer.rkey))
    peer.tell("give_up_region")
    assert peer.answer() == "gone"
    found = end.statuses(10)
    assert len(found) == 10
    failed = [status for status in found if status]
    assert failed == [10, *[5] * (len(failed) - 1)][: len(failed)]
