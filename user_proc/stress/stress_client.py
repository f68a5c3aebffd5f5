"""A client: it does its steps, tells what it finds, and takes part in a link with its mate.

Its order comes over its line: `{"kernel", "place", "steps" or "seed", "linked", "stay", ...}`; with
`stay` it goes on answering its mate after the last step until it is told to stop.

Rules: main thread only. It ends by `os._exit`: 0 done, left or told to stop, 1 a finding.
"""

import contextlib
import os
import traceback
from functools import partial
from typing import Any, Final, NoReturn

from user_proc.errors import SofthcaError
from user_proc.stress.client_counts import Counts
from user_proc.stress.client_line import Line, LineClosed, Words
from user_proc.stress.client_world import PATIENCE_S, World
from user_proc.stress.connection import Connection
from user_proc.stress.findings import DIED, Finding, NothingToDo
from user_proc.stress.link_steps import LINK
from user_proc.stress.mate_link import MateLink
from user_proc.stress.object_steps import Thing, close
from user_proc.stress.planner import Planner
from user_proc.stress.process_steps import leave
from user_proc.stress.quiet_client import be_quiet
from user_proc.stress.step_table import Step, perform
from user_proc.verbs.pyverbs_error import PyverbsError

_DONE: Final = 0
_FOUND: Final = 1
_ORDER_SECONDS: Final = 20.0
_LOOK_S: Final = 0.02


class Stopped(Exception):
    """It was told to stop."""


class Client:
    """One client, from its order to its end."""

    def __init__(self, line: Line, counts: Counts, order: Words) -> None:
        self._line: Final = line
        self._counts: Final = counts
        self._place: Final[int] = order["place"]
        self._stay: Final[bool] = order.get("stay", False)
        self._stop = False
        self.step = -1
        self._steps: Final[list[Step]] = order.get("steps") or _planned(order["seed"])
        self._world: Final = World(order["kernel"], partial(counts.count, self._place))
        self._world.patience_s = order.get("patience_s", PATIENCE_S)
        self._world.faulty = order.get("faulty", False)
        self._world.polled["line"] = self
        self._world.idle = self._idle
        if order.get("linked"):
            link = MateLink(self._world, line.tell)
            self._world.keep(LINK, link)

    # The line

    def poll(self) -> int:
        """Hear what was said; part of every look for completions."""
        self.hear(self._line.heard())
        return 0

    def hear(self, said: list[Words]) -> None:
        """Take what was said."""
        for words in said:
            self._hear(words)

    def _idle(self, seconds: float) -> None:
        self.hear(self._line.wait(seconds))

    def _hear(self, words: Words) -> None:
        if words["do"] == "stop":
            self._stop = True
        elif LINK in self._world.things:
            self._world.one(LINK, MateLink).hear(words)

    def leaving(self, how: str) -> None:
        """Tell that the process will end on purpose."""
        self._line.tell({"say": "leaving", "how": how, **self._figures()})

    def _figures(self) -> Words:
        world = self._world
        return {"operations": world.operations, "completions": world.ledger.completions}

    # The program

    def run(self) -> None:
        """Do the steps, then close everything."""
        self._line.tell({"say": "ready"})
        for number, step in enumerate(self._steps):
            self.step = number
            self._counts.begin_step(self._place, number)
            self._service()
            if self._stop:
                break
            if step[0] == "leave":
                leave(self, step[1])
            perform(self._world, step)
        self.step = len(self._steps)
        while self._stay and not self._stop:
            self._service()
            self._world.pump()
            self._idle(_LOOK_S)
            self._world.count()
        self._finish()
        self._line.tell({"say": "done", **self._figures()})

    def _service(self) -> None:
        if LINK in self._world.things:
            self._world.one(LINK, MateLink).service()

    def _finish(self) -> None:
        """Settle what is whole, then destroy everything, by name or all at once."""
        world = self._world
        for name, one in list(world.things.items()):
            if isinstance(one, Connection):
                if not one.broken:
                    one.settle()
                if not self._stop:
                    one.close()
                    del world.things[name]
            elif isinstance(one, MateLink) and not self._stop:
                one.close()
            elif isinstance(one, Thing) and name in world.things:
                close(world, name)
        world.call("close the context", world.context.close)
        world.process.close()


def _planned(seed: int) -> list[Step]:
    return Planner(seed).steps()


def be_a_client(line: Line, counts: Counts) -> NoReturn:
    """Take an order, carry it out, and end the process."""
    code = _FOUND
    client: Client | None = None
    try:
        order, *more = line.wait(_ORDER_SECONDS)
        if order.get("quiet"):
            be_quiet(line, order["kernel"], more)
        else:
            client = Client(line, counts, order)
            client.hear(more)
            client.run()
        code = _DONE
    except LineClosed:
        pass
    except Finding as finding:
        _tell(line, finding, client)
    except (SofthcaError, PyverbsError) as error:
        _tell(line, Finding(DIED, f"the client cannot go on: {error}"), client)
    except NothingToDo as error:
        _tell(line, Finding(DIED, f"a step left NothingToDo: {error}"), client)
    except BaseException:
        _tell(line, Finding(DIED, traceback.format_exc()), client)
    finally:
        os._exit(code)


def _tell(line: Line, finding: Finding, client: Client | None) -> None:
    step = -1 if client is None else client.step
    words: dict[str, Any] = {"say": "finding", "step": step, **finding.as_dict()}
    with contextlib.suppress(LineClosed):
        line.tell(words)
