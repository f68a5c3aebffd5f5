"""Several threads and processes issue verbs at a time, switched wherever that may happen."""

import random
from typing import Any

import pytest

from kernel_proc.driver.limits import Profile
from kernel_proc.hca_abi.device_settings import HcaSettings
from shared.verb_codes import (
    IOCTL_ALLOC_PD,
    IOCTL_DEALLOC_PD,
    IOCTL_DEREG_MR,
    IOCTL_QUERY_GID,
    IOCTL_REG_MR,
    IOCTL_REREG_MR,
)
from shared.verb_messages import Object, PortQuery, RegMr, ReregMr
from tests.kernel_proc.driver.hca_box import Answer, HcaBox, HcaSession, answer_of

PAGE = 4096
THREADS = 4
VERBS = 25


class Worker:
    """One thread: asks for one verb after another, of its own objects and of the others'."""

    def __init__(self, session: HcaSession, dice: random.Random, handles: list[int]) -> None:
        self.session = session
        self.dice = dice
        self.handles = handles
        self.thread = session.new_thread()
        self.address = session.private_buffer(8 * PAGE)
        self.left = VERBS
        self.answers: list[Answer] = []
        self.begin()

    def begin(self) -> None:
        ioctl, message = self.choose()
        call, self.request = self.session.begin_verb(ioctl, message, self.thread)
        self.call = call

    def choose(self) -> tuple[int, Any]:
        handle = self.dice.choice([*self.handles, 0])
        length = self.dice.randint(1, 8) * PAGE
        region = RegMr(handle, self.address, length, self.address, self.dice.choice([0, 1, 7]))
        again = ReregMr(handle, 3, self.dice.choice([*self.handles, 0]), self.address, length, 0)
        return self.dice.choice(
            [
                (IOCTL_ALLOC_PD, None),
                (IOCTL_DEALLOC_PD, Object(handle)),
                (IOCTL_REG_MR, region),
                (IOCTL_REG_MR, region),
                (IOCTL_DEREG_MR, Object(handle)),
                (IOCTL_REREG_MR, again),
                (IOCTL_QUERY_GID, PortQuery(1, 0)),
            ]
        )

    def step(self) -> bool:
        """Take a finished answer and go on; False when there is nothing left to do."""
        if not (self.call.done and self.request.finished):
            return self.left > 0
        if self.left <= 0:
            return False
        answer = answer_of(self.request.output or b"")
        self.answers.append(answer)
        handle = getattr(answer.reply, "handle", 0)
        if handle and handle not in self.handles:
            self.handles.append(handle)
        self.left -= 1
        if self.left:
            self.begin()
        return self.left > 0


def most_at_a_time(box: HcaBox) -> list[int]:
    """Note at each command how many the HCA has accepted and not carried out."""
    seen = [0]
    box.at_command(-1, lambda: None)
    interface = box.hca.commands
    perform = interface.__dict__["_perform"]

    def counted(command: Any) -> int:
        seen.append(len(interface._lane))
        return int(perform(command))

    interface.__dict__["_perform"] = counted
    return seen


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("polls", [False, True], ids=["event mode", "polling mode"])
def test_whoever_is_switched_to_nothing_is_lost(seed: int, polls: bool):
    dice = random.Random(seed)
    settings = HcaSettings(latency_model="plausible" if seed % 2 else "none", seed=seed + 1)
    profile = Profile(log_cqs=10, log_mgms=9)
    with HcaBox(seed=seed, settings=settings, profile=profile, polls_commands=polls) as box:
        at_a_time = most_at_a_time(box)
        before = box.tables()
        sessions = [box.session(f"user {number}") for number in range(2)]
        workers = []
        for session in sessions:
            handles: list[int] = []
            workers += [Worker(session, dice, handles) for _ in range(THREADS)]
        box.processor.run_until(lambda: not any([worker.step() for worker in workers]))
        answers = [answer for worker in workers for answer in worker.answers]
        assert len(answers) == len(workers) * VERBS
        assert {answer.errno for answer in answers} <= {0, 16, 22}
        assert sum(not answer.errno for answer in answers) > len(workers)
        for session in sessions:
            live = sum(
                -(-one.region.length // PAGE)
                for one in session.context.objects()
                if one.kind == "MR"
            )
            assert session.process.locked_pages == live
            assert session.context.objects() == sorted(
                session.context.objects(), key=lambda one: one.handle
            )
            session.close()
        after = box.tables()
        assert {**after, "locked": []} == {**before, "locked": []}
        if polls or settings.latency_model == "plausible":
            assert (max(at_a_time) == 1) == polls
