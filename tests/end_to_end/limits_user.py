"""A program that goes to every limit of one process, and one step beyond.

The program writes, as JSON, for each setting how often it
was given what it asked for, and the errno it was refused with; it stays until its input ends.
"""

import contextlib
import json
import sys
import threading
from collections.abc import Callable
from typing import Any, Final

from shared.ioctl_codes import COMPLETION_INLINE, METHOD_BUFFERED, noop_code
from shared.verb_codes import IOCTL_GET_CA_PORT_EVENT
from shared.verb_messages import Object
from tests.end_to_end.verbs_raw import Pended, RawVerbs
from user_proc.errors import NtStatusError
from user_proc.process import UserProcess
from user_proc.verbs.addr import AH, AHAttr
from user_proc.verbs.device import Context
from user_proc.verbs.mr import MR
from user_proc.verbs.pd import PD
from user_proc.verbs.pyverbs_error import PyverbsRDMAError

MIB: Final = 1 << 20
NOOP: Final = noop_code(METHOD_BUFFERED, COMPLETION_INLINE, touch=False)
MOST: Final = 1_000
Reached = tuple[int, int]


def until_refused(take: Callable[[int], object]) -> Reached:
    """Take again and again; how often that went well, and the errno of the first that did not."""
    for count in range(MOST):
        try:
            take(count)
        except PyverbsRDMAError as error:
            return count, error.error_code
        except NtStatusError as error:
            return count, error.errno or 0
    return MOST, 0


class Limits:
    """The ways to the limits, by setting; each gives back what it was given."""

    def __init__(self, process: UserProcess) -> None:
        self.process = process
        self.kept: list[Any] = []

    def give_back(self) -> None:
        for one in reversed(self.kept):
            one.close()
        self.kept.clear()

    def arena_bytes_per_process(self) -> Reached:
        buffers: list[Any] = []
        found = until_refused(lambda _: buffers.append(self.process.allocate(2 * MIB)))
        for buffer in buffers:
            buffer.release()
        return found

    def pool_bytes_per_process(self) -> Reached:
        with self.process.open_device("noop") as noop:
            return until_refused(lambda n: noop.device_io_control(NOOP, bytes(n * 64 << 10)))

    def locked_bytes_per_process(self) -> Reached:
        with Context(name="mthca0", process=self.process) as context:
            pd = PD(context)
            memory = self.process.allocate(64 << 10, page_aligned=True)
            found = until_refused(lambda _: self.kept.append(MR(pd, 64 << 10, 1, memory.address)))
            self.give_back()
        memory.release()
        return found

    def hca_percent_per_process(self) -> Reached:
        with Context(name="mthca0", process=self.process) as context:
            found = until_refused(lambda _: self.kept.append(PD(context)))
            self.give_back()
            return found

    def hca_objects_per_process(self) -> Reached:
        with Context(name="mthca0", process=self.process) as context:
            pd = PD(context)
            attr = AHAttr(dlid=1, port_num=1)
            found = until_refused(lambda _: self.kept.append(AH(pd, attr=attr)))
            self.give_back()
            return found

    def max_threads_per_session(self) -> Reached:
        over = threading.Event()
        threads: list[threading.Thread] = []

        def take(number: int) -> None:
            found: list[NtStatusError] = []
            done = threading.Event()

            def call() -> None:
                try:
                    self.process.create_event().close()
                except NtStatusError as error:
                    found.append(error)
                finally:
                    done.set()
                over.wait()

            threads.append(threading.Thread(target=call))
            threads[-1].start()
            done.wait()
            if found:
                raise found[0]

        reached = until_refused(take)
        over.set()
        for thread in threads:
            thread.join()
        return reached

    def max_requests_per_session(self) -> Reached:
        verbs = RawVerbs(self.process)
        pended: list[Pended] = []
        found = until_refused(
            lambda _: pended.append(verbs.pend(IOCTL_GET_CA_PORT_EVENT, Object(0)))
        )
        verbs.device.close()
        for request in pended:  # each has its place until its end has been heard of
            with contextlib.suppress(NtStatusError):
                request.overlapped.wait(20.0)
        return found

    def max_handles_per_session(self) -> Reached:
        found = until_refused(lambda _: self.kept.append(self.process.create_event()))
        self.give_back()
        return found


def main(kernel: str) -> None:
    """Go to each, twice: what was given back can be had again."""
    names = [name for name in vars(Limits) if name.endswith(("_per_process", "_per_session"))]
    with UserProcess.connect(kernel) as process:
        limits = Limits(process)
        reached = {name: [getattr(limits, name)() for _ in range(2)] for name in names}
        print(json.dumps(reached), flush=True)
        sys.stdin.read()
