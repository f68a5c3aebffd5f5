"""Every step there is, by the name it has in a list of steps.

A list of steps is data: `[name, argument, ...]` each, numbers and texts. Steps name things; one
about a thing that is not there does nothing, so every part of a list can be done as well.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final

from user_proc.stress import (
    link_steps,
    object_steps,
    process_steps,
    traffic_steps,
    traffic_variants,
    wrong_steps,
)
from user_proc.stress.client_world import World
from user_proc.stress.findings import NothingToDo

Step = Sequence[Any]

STEPS: Final[dict[str, Callable[..., None]]] = {
    "connect": traffic_steps.connect,
    "burst": traffic_steps.burst,
    "settle": traffic_steps.settle,
    "receive": traffic_steps.receive,
    "refuse": traffic_steps.refuse,
    "break": traffic_steps.break_up,
    "heal": traffic_steps.heal,
    "disconnect": traffic_steps.disconnect,
    "event": traffic_steps.await_event,
    "drain": traffic_variants.drain,
    "resize loaded": traffic_variants.resize_loaded,
    "solicited event": traffic_variants.solicited_event,
    "window": traffic_variants.window,
    "reach limit": traffic_variants.reach_limit,
    "multicast": traffic_variants.multicast,
    "link": link_steps.link_burst,
    "link settle": link_steps.link_settle,
    "pd": object_steps.make_pd,
    "mr": object_steps.make_mr,
    "rereg": object_steps.rereg,
    "mw": object_steps.make_mw,
    "channel": object_steps.make_channel,
    "cq": object_steps.make_cq,
    "resize": object_steps.resize,
    "arm": object_steps.arm,
    "srq": object_steps.make_srq,
    "limit": object_steps.limit,
    "qp": object_steps.make_qp,
    "move": object_steps.move_qp,
    "group": object_steps.join_group,
    "ah": object_steps.make_ah,
    "xrcd": object_steps.make_xrcd,
    "dm": object_steps.make_dm,
    "query": object_steps.query,
    "close": object_steps.close,
    "wrong call": wrong_steps.wrong_call,
    "wrong use": wrong_steps.wrong_use,
    "fill up": wrong_steps.fill_up,
    "change nothing": wrong_steps.change_nothing,
    "fork": process_steps.fork,
    "leave": process_steps.leave,
}


class UnknownStep(ValueError):
    """A list has something in it that is no step."""


def check_steps(steps: Any) -> list[Step]:
    """Return a list of steps as it was read; UnknownStep if it is none."""
    if not isinstance(steps, list):
        raise UnknownStep("a program is a list of steps")
    for step in steps:
        if not isinstance(step, list) or not step or step[0] not in STEPS:
            raise UnknownStep(f"{step!r} is no step: known are {', '.join(STEPS)}")
    return steps


def perform(world: World, step: Step) -> bool:
    """Do a step; tell whether there was anything to do. Raises Finding."""
    name, *arguments = step
    try:
        STEPS[name](world, *arguments)
    except NothingToDo:
        return False
    finally:
        world.pump()
    return True
