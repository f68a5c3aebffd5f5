"""Questions to the HCA's process for its state, and the answers: a file of its own for each.

The HCA writes the text into a memfd and then an eventfd, which wakes who waits. So nothing of it
is in the register page, nothing is mapped, and an answer that comes late, or never, concerns only
the question it belongs to. An HCA that owes an answer is asked nothing else: one that has stopped
is waited for once, and gets no more mail.

Rules: dispatcher's OS thread; `ask` at PASSIVE_LEVEL in a kernel thread.
Spec: kernel_proc/hca_abi/inspection_text.py, device_packets.py (INSPECT).
"""

import os
from collections.abc import Callable
from typing import Any, Final

from kernel_proc.driver.packet_sender import PacketSender
from kernel_proc.hca_abi.device_packets import INSPECT, DevicePacket
from kernel_proc.hca_abi.inspection_text import LENGTH, part_of, put
from kernel_proc.scheduling.event import Event
from kernel_proc.scheduling.mutex import Mutex
from kernel_proc.scheduling.processor import Processor
from shared.nt_status import STATUS_SUCCESS

NO_ANSWER: Final = "the HCA does not answer"
MOST_TEXT: Final = 64 << 20
_TAKING_NS: Final = 500_000_000  # an HCA that runs has taken its mail long before
_OWED_NS: Final = 20_000_000  # how long an answer is waited for that is late already
_LINES_AT_ONCE: Final = 64


class DeviceInspector:
    """Asks one question after the other.

    `sender` gives what reaches the HCA of now, None while it is dead; `served` is its live count of
    mail it has taken.
    """

    def __init__(
        self,
        processor: Processor,
        sender: Callable[[], PacketSender | None],
        served: memoryview,
        poke: Callable[[], object],
    ) -> None:
        self._processor = processor
        self._sender = sender
        self._served = served
        self._poke = poke
        self._asking = Mutex(processor)
        self._owed: _Question | None = None

    def ask(self, queue_pair: int, limit_ns: int) -> dict[str, Any]:
        """Return the answer; with "error" alone if none comes in time or it cannot be read."""
        if self._asking.wait(limit_ns) != STATUS_SUCCESS:
            return {"error": NO_ANSWER}
        try:
            text = self._answer(queue_pair, limit_ns)
        finally:
            self._asking.release()
        return {"error": NO_ANSWER} if text is None else self._tree(text)

    def drop(self) -> None:
        """Expect no answer any more: the HCA has ended. Who waits goes on."""
        if self._owed is not None:
            self._owed.close()

    def _answer(self, queue_pair: int, limit_ns: int) -> bytes | None:
        if self._owed is not None:
            self._owed.wait(min(limit_ns, _OWED_NS))
        sender = self._sender()
        if self._owed is not None or sender is None:
            return None
        try:
            self._owed = asked = _Question(self._processor, self._over)
        except OSError:  # the kernel has no descriptor left for it
            return None
        number = sender.send_now(DevicePacket(INSPECT, queue_pair, MOST_TEXT), asked.descriptors)
        if not number:  # it has not even read its other mail
            asked.close()
            return None
        self._poke()
        answered = asked.wait(min(limit_ns, _TAKING_NS))
        if not answered and self._served[0] >= number:  # it is at it
            asked.wait(limit_ns - _TAKING_NS)
        return asked.text

    def _over(self) -> None:
        self._owed = None

    def _tree(self, text: bytes) -> dict[str, Any]:
        """Take an answer apart in pieces, so that others run between them."""
        tree: dict[str, Any] = {}
        try:
            for number, line in enumerate(text.splitlines(), 1):
                put(tree, part_of(line))
                if not number % _LINES_AT_ONCE:
                    self._processor.dispatcher.pause()
        except ValueError as error:
            return {"error": f"the HCA's answer cannot be read: {error}"}
        return tree


class _Question:
    """A question; `over` is called once, when it is answered or closed."""

    def __init__(self, processor: Processor, over: Callable[[], object]) -> None:
        self._processor = processor
        self._over = over
        self._ended = Event(processor, notification=True)
        self._answer = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        try:
            self._file = os.memfd_create("softhca-inspection", os.MFD_CLOEXEC)
        except OSError:
            os.close(self._answer)
            raise
        self._closed = False
        self.text: bytes | None = None
        processor.add_source(self._answer, self._answered)

    @property
    def descriptors(self) -> tuple[int, int]:
        """What the HCA is handed; this end keeps its own."""
        return self._file, self._answer

    def wait(self, limit_ns: int) -> bool:
        """Wait for the answer, or for the end of the HCA; False if neither came."""
        return self._ended.wait(max(0, limit_ns)) == STATUS_SUCCESS

    def close(self) -> None:
        """Wait for no answer any more; whoever does goes on. Doing so twice is harmless."""
        if self._closed:
            return
        self._closed = True
        self._processor.remove_source(self._answer)
        os.close(self._answer)
        os.close(self._file)
        self._ended.set()
        self._over()

    def _answered(self) -> None:
        # Called by the dispatcher when the eventfd is readable.
        data = os.pread(self._file, min(os.fstat(self._file).st_size, MOST_TEXT), 0)
        if len(data) >= LENGTH.size:
            (length,) = LENGTH.unpack_from(data)
            if LENGTH.size <= length <= len(data):
                self.text = data[LENGTH.size : length]
        self.close()
