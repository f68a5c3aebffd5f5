"""Steps about the link with the mate; they do nothing while it is not up."""

from user_proc.stress.client_world import World
from user_proc.stress.findings import NothingToDo
from user_proc.stress.mate_link import MateLink
from user_proc.stress.sending import Request

LINK = "link"


def link_burst(world: World, requests: list[list[int]]) -> None:
    """Post requests to the mate: opcode, length, inline, pieces of each."""
    wanted = [
        Request(opcode, length, True, bool(inline), pieces)
        for opcode, length, inline, pieces in requests
    ]
    _link(world).burst(wanted)


def link_settle(world: World) -> None:
    """Wait until everything sent to the mate has come back."""
    _link(world).settle()


def _link(world: World) -> MateLink:
    if LINK not in world.things:
        raise NothingToDo("there is no mate")
    return world.one(LINK, MateLink)
