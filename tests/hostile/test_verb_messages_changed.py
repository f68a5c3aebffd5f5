"""Every verb with messages that are nearly right: a status or a refusal, and nothing is left."""

import errno
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernel_proc.machine import Machine
from shared import verb_codes as codes
from shared.message_codec import decode
from shared.verb_messages import VERB_MESSAGES
from shared.verb_reasons import VerbReason
from tests.end_to_end.verbs_raw import RawVerbs
from tests.hostile.machines import (
    User,
    answered,
    check_as_before,
    check_witness,
    holdings,
    make_machine,
)
from tests.hostile.recipes import Recipe, kept, made, recipes
from tests.hostile.valid_verbs import VALID, OneOfEach

EXAMPLES = 5  # of some recipes each, for every verb
CODES = {name: code for code, name in codes.VERB_NAMES.items()}


class Scene:
    """A machine with an attacker and a witness."""

    def __init__(self) -> None:
        self.machine: Machine = make_machine()
        self.attacker = User(self.machine, "attacker")
        self.other = User(self.machine, "witness")
        self.witness: RawVerbs = self.other.verbs()
        check_witness(self.machine, self.witness)
        OneOfEach(self.attacker).close()  # what is kept for the next, as arenas, is there
        self.before = holdings(self.machine)

    def check(self) -> None:
        """Nothing is left of the attacker but his session, and the witness is served."""
        check_as_before(self.machine, self.witness, self.before)


@pytest.fixture(scope="module")
def scene() -> Iterator[Scene]:
    built = Scene()
    yield built
    built.attacker.close()
    built.other.close()
    assert holdings(built.machine)["sessions"] == []
    built.machine.close()


def send(things: OneOfEach, code: int, recipe: Recipe) -> None:
    """Send one message; whatever is said to it must be an answer."""
    things.restore()
    message = VALID[code](things)
    valid = None if message is None else [*VERB_MESSAGES[type(message)], *message]
    sent = made(valid, codes.VERB_OUTPUT_LENGTH, recipe, things.handles)
    output = answered(things.verbs.device, code, sent)
    if output is not None:
        judge(output)


def judge(output: bytes) -> None:
    """An answer says what a user can understand."""
    number, reason, _, _ = codes.VERB_RESULT.unpack_from(output)
    assert (number == 0) == (reason == VerbReason.NONE)
    assert number == 0 or number in errno.errorcode
    VerbReason(reason)
    if len(output) > codes.VERB_RESULT.size:
        decode(output[codes.VERB_RESULT.size :])


def run(scene: Scene, code: int, examples: int) -> None:
    """Send hostile messages of one code by one opening; what they left goes with it."""
    things = OneOfEach(scene.attacker)

    @settings(max_examples=examples)
    @given(batch=st.lists(recipes, min_size=3, max_size=6))
    def send_some(batch: list[Recipe]) -> None:
        for recipe in batch:
            send(things, code, recipe)

    try:
        send_some()
    finally:
        things.close()
    scene.check()


def test_there_is_a_valid_message_for_every_verb(scene: Scene):
    assert set(VALID) == set(codes.VERB_NAMES)
    things = OneOfEach(scene.attacker)
    for code, make in VALID.items():
        things.restore()
        message: Any = make(things)
        if code in (codes.IOCTL_DEALLOC_PD, codes.IOCTL_DESTROY_CQ):
            assert things.verbs.ask(code, message).errno == errno.EBUSY
        elif code < codes.IOCTL_GET_CA_FATAL_EVENT:
            things.verbs.good(code, message)
        else:
            assert not things.verbs.pend(code, message).overlapped.done
    things.close()
    scene.check()


@pytest.mark.parametrize("code", VALID, ids=codes.VERB_NAMES.get)
def test_what_is_nearly_a_message(scene: Scene, code: int):
    run(scene, code, EXAMPLES)


@pytest.mark.stress
@pytest.mark.timeout(900)
@pytest.mark.parametrize("code", VALID, ids=codes.VERB_NAMES.get)
def test_what_is_nearly_a_message_for_long(scene: Scene, code: int):
    run(scene, code, 1000)


@pytest.mark.parametrize("found", kept("verbs"), ids=lambda found: found["name"])
def test_what_was_kept(scene: Scene, found: dict[str, Any]):
    things = OneOfEach(scene.attacker)
    for code in [CODES[found["verb"]]] if found["verb"] else list(VALID):
        send(things, code, found["recipe"])
    things.close()
    scene.check()
