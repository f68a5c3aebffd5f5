"""Random programs: a seed makes the same list of steps everywhere and always.

The planner keeps names, not objects: whether a step applies is seen when it is done.

Rules: pure; random numbers come from the seed alone.
"""

import random
from collections.abc import Callable, Iterator
from typing import Any, Final

from user_proc.stress import shapes
from user_proc.stress.refused_work import REFUSALS
from user_proc.stress.step_table import Step
from user_proc.stress.wrong_steps import ABOUT_ENDS, CALLS

_CONNECTIONS: Final = 3
_THINGS: Final = 6  # of each kind
_FEWEST, _MOST = 60, 400
_LEAVES: Final = ("", "", "exit", "exec", "kill")  # "": to the end, closing everything
_LENGTHS: Final = (0, 1, 7, 24, 64, 65, 256, 1000, 1024, 2048)
_ACCESSES: Final = (0, 1, 1 | 2, 1 | 4, 1 | 2 | 4 | 8, 1 | 16, 4)
_FORKS: Final = 0.004


def seed_of(run: int, place: int, life: int) -> int:
    """Return the seed of the so manieth client at a place in a run."""
    return random.Random(f"{run} {place} {life}").getrandbits(48)


class Planner:
    """Makes the steps of one client."""

    def __init__(self, seed: int) -> None:
        self._chance: Final = random.Random(seed)
        self._names = 0
        self._connections: dict[str, shapes.Shape] = {}
        self._things: dict[str, list[str]] = {}
        self._ways: Final[list[tuple[Callable[[], Step | None], int]]] = [
            (self._burst, 40),
            (self._settle, 8),
            (self._link, 12),
            (self._link_settle, 2),
            (self._receive, 4),
            (self._connect, 4),
            (self._disconnect, 2),
            (self._refuse, 7),
            (self._break, 3),
            (self._event, 2),
            (self._variant, 8),
            (self._make, 14),
            (self._change, 10),
            (self._close, 5),
            (self._query, 2),
            (self._wrong_call, 6),
            (self._wrong_use, 6),
        ]

    def steps(self) -> list[Step]:
        """Return the whole program."""
        count = self._chance.randrange(_FEWEST, _MOST)
        made: list[Step] = [self._connect_new(), self._pd(), self._queue()]
        ways, weights = zip(*self._ways, strict=True)
        while len(made) < count:
            (way,) = self._chance.choices(ways, weights)
            step = way()
            if step is not None:
                made.append(step)
                made.extend(self._after(step))
            if self._chance.random() < _FORKS:
                made.append(["fork"])
        if how := self._chance.choice(_LEAVES):
            made.append(["leave", how])
        return made

    def _after(self, step: Step) -> Iterator[Step]:
        """Heal what was broken, mostly at once."""
        may_break = step[0] in ("refuse", "break") or (step[0] == "window" and step[-1] == 3)
        if may_break and self._chance.random() < 0.9:
            yield ["heal", step[1]]

    def _name(self, kind: str) -> str:
        self._names += 1
        return f"{kind}{self._names}"

    # Connections

    def _connect(self) -> Step | None:
        return self._connect_new() if len(self._connections) < _CONNECTIONS else None

    def _connect_new(self) -> Step:
        chance, name = self._chance, self._name("c")
        kind = chance.choice(("rc", "rc", "rc", "loop", "uc", "ud", "xrc"))
        large = chance.random() < 0.1
        shape: dict[str, Any] = {
            "kind": kind,
            "depth": 4 if large else chance.choice((4, 8, 16)),
            "slot": 65536 if large else chance.choice((256, 1024, 2048)),
            "mtu": chance.choice((1, 3, 5)),
            "private": chance.random() < 0.2,
            "shared": kind in ("rc", "ud") and chance.random() < 0.3,
            "extended": chance.random() < 0.3,
            "channel": chance.random() < 0.4,
            "patient": chance.random() < 0.7,
        }
        self._connections[name] = shapes.Shape.of(shape)
        return ["connect", name, shape]

    def _one_connection(self) -> str | None:
        return self._chance.choice(list(self._connections)) if self._connections else None

    def _burst(self) -> Step | None:
        chance, name = self._chance, self._one_connection()
        if name is None:
            return None
        shape = self._connections[name]
        opcodes = shapes.OPCODES[shape.kind]
        requests = [
            [
                chance.choice(opcodes),
                min(chance.choice((*_LENGTHS, shape.longest)), shape.longest),
                int(chance.random() < 0.7),
                int(chance.random() < 0.2),
                chance.choice((1, 1, 2, 3)),
                int(chance.random() < 0.2),
                int(chance.random() < 0.1),
            ]
            for _ in range(chance.choice((1, 2, 5, 10, 25)))
        ]
        return ["burst", name, chance.randrange(2), requests]

    def _settle(self) -> Step | None:
        name = self._one_connection()
        return None if name is None else ["settle", name]

    def _receive(self) -> Step | None:
        chance, name = self._chance, self._one_connection()
        if name is None:
            return None
        return ["receive", name, chance.randrange(2), chance.randrange(1, 17)]

    def _disconnect(self) -> Step | None:
        name = self._one_connection()
        if name is not None:
            del self._connections[name]
        return None if name is None else ["disconnect", name]

    def _refuse(self) -> Step | None:
        chance, name = self._chance, self._one_connection()
        if name is None:
            return None
        kind = self._connections[name].kind
        ways = [way for way, refusal in REFUSALS.items() if kind in refusal.kinds]
        if not ways:
            return None
        direction = chance.randrange(2)
        return [
            "refuse", name, direction, chance.choice(ways), chance.randrange(8), chance.randrange(4)
        ]  # fmt: skip

    def _break(self) -> Step | None:
        name = self._one_connection()
        return None if name is None else ["break", name]

    def _event(self) -> Step | None:
        named = [name for name, shape in self._connections.items() if shape.channel]
        return ["event", self._chance.choice(named)] if named else None

    def _variant(self) -> Step | None:
        """Load a connection in a less usual way, one that its shape has."""
        chance, name = self._chance, self._one_connection()
        if name is None:
            return None
        shape = self._connections[name]
        steps: list[Step] = [["resize loaded", name, chance.choice((0, 5, 200))]]
        burst = self._burst()
        if burst is not None and burst[1] == name:
            steps.append(["drain", *burst[1:]])
        if shape.channel:
            steps.append(["solicited event", name])
        if shape.kind == "ud":
            steps.append(["multicast", name, chance.randrange(1, 5)])
        if shape.kind == "rc":
            second, how = chance.randrange(2), chance.randrange(4)
            steps.append(["window", name, chance.randrange(2), second, how])
            if shape.shared:
                steps.append(["reach limit", name, chance.randrange(1, 9)])
        return chance.choice(steps)

    def _link(self) -> Step:
        chance = self._chance
        requests = [
            [
                chance.choice(shapes.OPCODES["rc"]),
                chance.choice((1, 24, 64, 500, 1024)),
                int(chance.random() < 0.2),
                chance.choice((1, 2)),
            ]
            for _ in range(chance.choice((1, 4, 12)))
        ]
        return ["link", requests]

    def _link_settle(self) -> Step:
        return ["link settle"]

    # Objects

    def _one(self, kind: str) -> str:
        """Name one of a kind; one that is not there if there is none."""
        named = self._things.get(kind)
        return self._chance.choice(named) if named else f"no {kind}"

    def _new(self, kind: str) -> str:
        name = self._name(kind)
        self._things.setdefault(kind, []).append(name)
        return name

    def _pd(self) -> Step:
        return ["pd", self._new("pd")]

    def _queue(self) -> Step:
        chance = self._chance
        channel = self._one("channel") if chance.random() < 0.4 else ""
        if channel.startswith("no "):
            channel = ""
        size = chance.choice((1, 15, 16, 100, 500))
        return ["cq", self._new("cq"), size, channel, chance.randrange(2)]

    def _make(self) -> Step | None:
        chance = self._chance
        kind = chance.choice(
            ("pd", "mr", "mr", "mr", "mw", "channel", "cq", "srq", "qp", "qp", "qp", "ah", "xrcd",
             "dm")
        )  # fmt: skip
        if len(self._things.get(kind, ())) >= _THINGS:
            return ["close", self._things[kind].pop(0)]
        pd = self._one("pd")
        if kind == "pd":
            return self._pd()
        if kind == "cq":
            return self._queue()
        arguments: dict[str, list[Any]] = {
            "mr": [
                pd, chance.choice((1, 64, 4096, 5000, 100_000)), chance.choice(_ACCESSES),
                int(chance.random() < 0.5),
            ],
            "mw": [pd, chance.randrange(2)],
            "srq": [pd, chance.choice((1, 8, 100))],
            "qp": [
                pd, self._one("cq"), chance.randrange(3),
                self._one("srq") if chance.random() < 0.2 and self._things.get("srq") else "",
            ],
            "ah": [pd],
            "dm": [chance.choice((64, 4096))],
        }  # fmt: skip
        return [kind, self._new(kind), *arguments.get(kind, [])]

    def _change(self) -> Step | None:
        chance = self._chance
        way = chance.choice(("move", "move", "move", "move", "group", "rereg", "resize", "arm",
                             "limit"))  # fmt: skip
        of = {"move": "qp", "group": "qp", "rereg": "mr", "resize": "cq", "arm": "cq",
              "limit": "srq"}  # fmt: skip
        name = self._one(of[way])
        arguments: dict[str, list[Any]] = {
            "move": [chance.randrange(5)],
            "group": [chance.randrange(6), chance.randrange(2)],
            "rereg": [chance.choice(_ACCESSES)],
            "resize": [chance.choice((1, 20, 300))],
            "arm": [chance.randrange(2)],
            "limit": [chance.choice((0, 1, 4, 20_000))],
        }
        return [way, name, *arguments[way]]

    def _close(self) -> Step | None:
        kinds = [kind for kind, named in self._things.items() if named]
        if not kinds:
            return None
        named = self._things[self._chance.choice(kinds)]
        return ["close", named.pop(self._chance.randrange(len(named)))]

    def _query(self) -> Step:
        return ["query", self._chance.randrange(1, 3)]

    # Wrong calls

    def _wrong_call(self) -> Step:
        return ["wrong call", self._chance.choice(list(CALLS))]

    def _wrong_use(self) -> Step | None:
        chance, name = self._chance, self._one_connection()
        if name is None:
            return None
        way = chance.randrange(12)
        if way == 0:
            return ["fill up", name]
        if way == 1:
            return ["change nothing", name]
        return ["wrong use", name, chance.randrange(2), chance.choice(list(ABOUT_ENDS))]
