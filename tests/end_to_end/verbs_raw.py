"""Verbs as raw device controls, for handles and values no library would send."""

from typing import Any, NamedTuple

from shared.message_codec import decode, encode
from shared.verb_codes import HCA_DEVICE, VERB_OUTPUT_LENGTH, VERB_RESULT
from shared.verb_messages import VerbMessage
from user_proc.io.device_handle import DeviceHandle
from user_proc.io.overlapped import Overlapped
from user_proc.process import UserProcess


class Answer(NamedTuple):
    """What a verb answered."""

    errno: int
    reason: int
    object: int
    detail: int
    reply: Any


class Pended:
    """A request that was sent and has not been waited for."""

    def __init__(self, overlapped: Overlapped, output: bytearray) -> None:
        self.overlapped = overlapped
        self._output = output

    def answer(self, timeout: float | None = 20.0) -> Answer:
        """Wait for its end."""
        return judged(self._output, self.overlapped.wait(timeout))


def judged(output: bytearray, length: int) -> Answer:
    """Decode an output."""
    fields = VERB_RESULT.unpack_from(output)
    rest = bytes(output[VERB_RESULT.size : length])
    return Answer(*fields, decode(rest) if rest else None)


class RawVerbs:
    """An opening of the device that is asked without a library."""

    def __init__(self, process: UserProcess, device: DeviceHandle | None = None) -> None:
        self.process = process
        self.device = device or process.open_device(HCA_DEVICE, overlapped=True)

    def pend(self, code: int, message: VerbMessage | None = None, **how: Any) -> Pended:
        """Send a verb and do not wait."""
        output = bytearray(VERB_OUTPUT_LENGTH)
        payload = None if message is None else encode(message)
        return Pended(self.device.start(code, payload, output, **how), output)

    def ask(self, code: int, message: VerbMessage | None = None) -> Answer:
        """Send a verb; what it answered."""
        output = bytearray(VERB_OUTPUT_LENGTH)
        payload = None if message is None else encode(message)
        return judged(output, self.device.device_io_control(code, payload, output))

    def good(self, code: int, message: VerbMessage | None = None) -> Any:
        """Send a verb that succeeds; its reply."""
        answer = self.ask(code, message)
        assert answer[:2] == (0, 0), answer
        return answer.reply
