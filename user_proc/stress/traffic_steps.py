"""Steps about connections: made, loaded, broken, healed, closed, waited for by events."""

from typing import Any

from user_proc.stress.client_world import World
from user_proc.stress.connection import Connection
from user_proc.stress.findings import NothingToDo
from user_proc.stress.refused_work import be_refused
from user_proc.stress.sending import Request
from user_proc.stress.shapes import SEND, Shape


def connect(world: World, name: str, shape: dict[str, Any]) -> None:
    """Make a connection of a shape."""
    world.require_free(name)
    world.keep(name, Connection(world, Shape.of(shape), name))


def burst(world: World, name: str, direction: int, requests: list[list[int]]) -> None:
    """Post requests one after the other; each is the fields of `Request`."""
    world.one(name, Connection).burst(direction, requests_of(requests))


def requests_of(requests: list[list[int]]) -> list[Request]:
    """Return requests as steps have them: the fields of `Request`, up to `fenced`."""
    return [
        Request(opcode, length, bool(signaled), bool(inline), pieces, bool(solicited), bool(fenced))
        for opcode, length, signaled, inline, pieces, solicited, fenced in requests
    ]


def settle(world: World, name: str) -> None:
    """Wait until everything of a connection has come back."""
    world.one(name, Connection).settle()


def receive(world: World, name: str, end: int, count: int) -> None:
    """Post receives."""
    connection = world.one(name, Connection)
    connection.require_whole()
    connection.ends[end].post_receives(count)


def refuse(world: World, name: str, direction: int, how: str, choice: int, trailing: int) -> None:
    """Post a request that must fail."""
    connection = world.one(name, Connection)
    connection.require_whole()
    be_refused(connection, direction, how, choice, trailing)


def break_up(world: World, name: str) -> None:
    """Take the ends to ERR with requests out."""
    world.one(name, Connection).break_up()


def heal(world: World, name: str) -> None:
    """Take the ends through RESET to RTS."""
    world.one(name, Connection).heal()


def disconnect(world: World, name: str) -> None:
    """Destroy a connection with whatever is out."""
    connection = world.one(name, Connection)
    del world.things[name]
    connection.close()


def await_event(world: World, name: str) -> None:
    """Arm the queue, send a message, and be told of its completion."""
    connection = world.one(name, Connection)
    source = connection.source
    if source.channel is None:
        raise NothingToDo(f"{name} has no channel")
    connection.settle()
    source.arm()
    # It may have been armed on a queue that had something to poll: that event is due as well.
    connection.burst(0, [Request(SEND, 16)])
    source.take_event(world.patience_s)
    connection.settle()
