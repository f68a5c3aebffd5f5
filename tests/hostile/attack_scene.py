"""Attacker and victim: two sessions of one kernel in this process, each with one of everything."""

from collections.abc import Iterator
from typing import Any

from shared import envelope
from shared import verb_codes as codes
from shared.envelope import (
    KIND_CLOSE,
    Header,
    make_header,
    parse_header,
)
from shared.nt_status import (
    STATUS_INVALID_HANDLE,
)
from shared.verb_messages import Object
from tests.hostile.machines import User, holdings, make_machine
from tests.hostile.valid_verbs import OneOfEach

APART = 64  # how far the victim's handles lie from the attacker's


class Scene:
    """Attacker and victim, each with one of everything."""

    def __init__(self) -> None:
        self.machine = make_machine()
        self.attacker = User(self.machine, "attacker")
        self.victim = User(self.machine, "victim")
        self.own = OneOfEach(self.attacker)
        self.theirs = self._shifted()
        assert self.call(KIND_CLOSE).status == STATUS_INVALID_HANDLE  # its thread is known now

    def _shifted(self) -> OneOfEach:
        """The victim's things, whose handles the attacker has none of."""
        things = OneOfEach(self.victim)
        context = self.victim.context_of(things.verbs)
        context._next += APART
        for kind in reversed(list(things.handles)):
            _destroy(things, kind)
        things.handles.clear()
        things.restore()
        assert min(things.handles.values()) > max(self.own.handles.values())
        return things

    def call(self, kind: int, payload: bytes = b"", **fields: Any) -> Header:
        """Send a request of the attacker's; the header of the answer."""
        port = self.attacker.process.channel.port()
        values = {
            "session": self.attacker.process.session,
            "epoch": self.attacker.process.channel.epoch,
            "thread": 9,
            "request_id": port.take_request_id(),
            "flags": envelope.FLAG_INPUT_INLINE if payload else 0,
            "input_length": len(payload),
        } | fields
        frames = [make_header(kind, **values), *([payload] if payload else [])]
        return parse_header(self.attacker.door.exchange(frames)[0])


_DESTROY = {
    "PD": codes.IOCTL_DEALLOC_PD, "MR": codes.IOCTL_DEREG_MR, "MW": codes.IOCTL_DEALLOC_MW,
    "AH": codes.IOCTL_DESTROY_AH, "CQ": codes.IOCTL_DESTROY_CQ, "SRQ": codes.IOCTL_DESTROY_SRQ,
    "QP": codes.IOCTL_DESTROY_QP, "UD": codes.IOCTL_DESTROY_QP, "XRCD": codes.IOCTL_CLOSE_XRCD,
    "DM": codes.IOCTL_FREE_DM,
}  # fmt: skip


def _destroy(things: OneOfEach, kind: str) -> None:
    things.verbs.good(_DESTROY[kind], Object(things[kind]))


def open_scene() -> Iterator[Scene]:
    """Give the two, and see that nothing is left of them; for a fixture of a module."""
    built = Scene()
    yield built
    built.own.close()
    built.theirs.close()
    built.attacker.close()
    built.victim.close()
    assert holdings(built.machine)["sessions"] == []
    built.machine.close()


def victims(scene: Scene) -> dict[str, Any]:
    """What must be as it was: all that is held, and the victim's things as the driver tells."""
    context = scene.victim.context_of(scene.theirs.verbs)
    return {"all": holdings(scene.machine), "things": context.inspect()["objects"]}
