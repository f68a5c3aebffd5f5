"""The tables of memory windows once more, with their owner in another process.

Half of them with memory of an arena, half with the owner's private memory.
"""

from collections.abc import Iterator

import pytest

from kernel_proc.hca.engine import operations as ops
from tests.end_to_end.conftest import Kernel
from tests.end_to_end.test_engine_traffic import START, Peer
from tests.end_to_end.test_window_traffic import begin_anew, join
from tests.end_to_end.window_end import OFFSETS, WindowEnd
from tests.end_to_end.window_end import START as WINDOW
from tests.end_to_end.window_party import VerbsParty, VerbsWindow
from tests.kernel_proc.hca.engine import test_window_access as access
from tests.kernel_proc.hca.engine import test_window_binding as binding
from tests.kernel_proc.hca.engine import test_window_lives as lives
from user_proc.verbs.pyverbs_error import PyverbsRDMAError

pytestmark = pytest.mark.processes

GOOD, REFUSED, INVALID = ops.SUCCESS, ops.REM_ACCESS_ERR, ops.REM_INV_REQ_ERR
MEMORY = ("shared", "private")
Joined = tuple[WindowEnd, Peer]
CASES = {"access": access.CASES, "invalidation": lives.CASES, "bind": binding.CASES}


@pytest.fixture(scope="module", params=MEMORY)
def ends(shared_kernel: Kernel, request: pytest.FixtureRequest) -> Iterator[Joined]:
    """This process, and one that owns the windows."""
    end, peer = join(shared_kernel.name, request.param)
    yield end, peer
    end.context.close()
    peer.end()


@pytest.fixture
def half(request: pytest.FixtureRequest) -> slice:
    """Which cases of a table these ends do."""
    memory: str = request.node.callspec.params["ends"]
    return slice(MEMORY.index(memory), None, len(MEMORY))


def join_others(end: WindowEnd, peer: Peer, foreign: bool = False) -> None:
    """Connect another pair of the same two processes."""
    number = peer.ask("open_other", foreign)
    own = end.open_other()
    end.connect_other(number)
    peer.ask("connect_other", own)


def test_the_tables_are_whole():
    print({name: len(cases) for name, cases in CASES.items()})
    assert [len(cases) for cases in CASES.values()] == [180, 40, 106]
    known = {way.name for way in access.WAYS}
    assert set(OFFSETS) < known


def test_what_a_window_of_another_process_grants(ends: Joined, half: slice):
    end, peer = ends
    base = peer.buf + (2 << 20) + WINDOW
    for number, (kind, way, name) in enumerate(access.CASES[half]):
        case = (kind, way.name, name)
        key, address = peer.ask("prepare", kind, way.name, access.NEEDS[name])
        by_another = way.name.startswith("by another")
        if by_another:
            join_others(end, peer, foreign=way.name == "by another domain")
            end.exchange()
            peer.ask("exchange")
        if name.endswith("IMM"):
            peer.ask("receive", 0, 8)
        if address % 8 and name.startswith("ATOMIC"):
            with pytest.raises(PyverbsRDMAError, match="not a multiple of 8"):
                end.send(name, START, 8, (address, key))
            continue
        expected = way.status[kind - 1]
        looked_at = address if expected == GOOD else base
        before = peer.ask("half_read", looked_at, 16)
        end.fill(number, START, 8)
        sent = end.read(START, 8).hex()
        end.send(name, START, 8, (address, key), operands=(5, 9))
        assert end.statuses() == [expected], case
        after = peer.ask("half_read", looked_at, 16)
        if name.endswith("IMM"):
            assert peer.ask("statuses") == [ops.LOC_ACCESS_ERR if expected else GOOD], case
        if by_another:
            end.exchange()
            peer.ask("exchange")
        if expected:
            assert after == before, case
            if not by_another:
                begin_anew(end, peer)
        elif name.startswith("RDMA_WRITE"):
            assert after[:16] == sent, case
        else:
            assert end.read(START, 8).hex() == before[:16], case


def test_the_ends_of_windows_of_another_process(ends: Joined, half: slice):
    end, peer = ends
    for kind, one in lives.CASES[half]:
        case = (kind, *one[:2])
        key = peer.ask("prepare_end", kind, one.state)
        was_bound = peer.ask("is_bound")
        assert was_bound == (one.state not in ("free", "of another domain")), case
        of_other = "other" in one.role
        if of_other:
            join_others(end, peer)
            end.exchange()
            peer.ask("exchange")
        expected = one.done[kind - 1]
        if one.role.startswith("peer"):
            peer.ask("receive", 0, 8)
            assert end.send_with_inv(key) == (GOOD if expected else REFUSED), case
            if expected:
                assert peer.ask("lengths") == [[GOOD, 0, 8]], case  # IBV_WC_WITH_INV
            else:
                assert peer.ask("statuses") == [INVALID], case
        else:
            status = peer.ask("invalidate", key)
            assert status == (GOOD if expected else ops.LOC_QP_OP_ERR), case
        assert peer.ask("is_bound") == (was_bound and not expected), case
        if of_other:
            end.exchange()
            peer.ask("exchange")
        elif not expected:
            begin_anew(end, peer)


def test_every_rule_of_binding_by_entries_of_the_programs_own_making(shared_kernel: Kernel):
    """The library would refuse some of them: entries are stored in the ring as any program can."""
    party = VerbsParty(shared_kernel.name)
    for kind, rule in binding.CASES:
        case = (kind, rule.name)
        party.begin()
        window = VerbsWindow(party, kind)
        changes = party.possible(rule.make(party, window), window)
        before = party.is_bound(changes)
        expected = rule.status[kind - 1]
        assert party.bind(window, **changes) == expected, case
        assert party.owner.state == (binding.RTS if expected == GOOD else binding.ERR), case
        bound = bool(changes.get("length", 1)) if expected == GOOD else before
        assert party.is_bound(changes) == bound, case
        window.mw.close()
        if expected != GOOD:
            party.owner.renew()
    party.end.context.close()
