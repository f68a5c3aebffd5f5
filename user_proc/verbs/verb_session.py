"""One opening of the HCA's device: verbs go down from here, and it is known here when it is over.

The API's objects hold this, never their Context, so that nothing is kept alive in a circle. An
object that goes out of reach leaves its resource in `forgotten`, without a lock or a call, as a
finaliser must; the next verb destroys it.

Rules: any thread. In a forked child every use is refused.
Spec: shared/verb_codes.py; docs/verbs.md.
"""

import errno
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, TypeVar

from shared.message_codec import MessageError, decode_as, encode
from shared.nt_status import (
    STATUS_INVALID_CONNECTION,
    STATUS_PROCESS_IS_TERMINATING,
    STATUS_THREAD_IS_TERMINATING,
)
from shared.verb_codes import (
    IOCTL_OPEN_CONTEXT,
    VERB_NAMES,
    VERB_OUTPUT_LENGTH,
    VERB_RESULT,
)
from shared.verb_messages import Object, OpenContext, VerbMessage
from shared.verb_reasons import VerbReason
from user_proc.errors import (
    CallInProgress,
    ConnectionClosed,
    ForkedProcess,
    KernelDied,
    NtStatusError,
    SofthcaError,
)
from user_proc.process import UserProcess
from user_proc.provider.queue_table import QueueTable
from user_proc.verbs.pyverbs_error import PyverbsError, PyverbsRDMAError, PyverbsUserError
from user_proc.verbs.reasons import reason_text

if TYPE_CHECKING:
    from user_proc.io.device_handle import DeviceHandle
    from user_proc.provider.doorbell_writer import DoorbellWriter

_M = TypeVar("_M")

#: What the kernel answers to a session it runs down, as it does when it stops in order.
_SESSION_HAS_ENDED: Final = frozenset(
    {
        STATUS_INVALID_CONNECTION,
        STATUS_PROCESS_IS_TERMINATING,
        STATUS_THREAD_IS_TERMINATING,
    }
)

FORKED: Final = "it was made before fork and belongs to the parent: open the device again here"
CLOSED: Final = "its context has been closed"

_sessions: "weakref.WeakSet[VerbSession]" = weakref.WeakSet()


def _refuse_in_child() -> None:
    for session in list(_sessions):
        session.trouble = FORKED


os.register_at_fork(after_in_child=_refuse_in_child)


class VerbRefusal(Exception):
    """A verb was refused, or could not be asked: errno and a sentence.

    `session_is_over` tells that nothing of the session is left in the kernel, `kind` is the
    driver's VerbReason, 0 if it was not the driver that refused.
    """

    def __init__(
        self,
        number: int,
        reason: str,
        session_is_over: bool = False,
        detail: int = 0,
        kind: int = VerbReason.NONE,
    ) -> None:
        super().__init__(reason)
        self.errno = number
        self.reason = reason
        self.session_is_over = session_is_over
        self.detail = detail
        self.kind = kind

    def error(self, text: str) -> PyverbsError:
        """Give the exception of the API; text is pyverbs' for the verb."""
        return PyverbsRDMAError(text, self.errno, reason=self.reason)


class Resource:
    """Something the kernel holds for us: how it is destroyed, and what is let go afterwards.

    `keep` must stay alive as long as the kernel may use it.
    """

    __slots__ = ("code", "handle", "keep", "release", "session")

    def __init__(
        self,
        session: "VerbSession",
        code: int,
        handle: int,
        release: Callable[[], None] | None = None,
        keep: object = None,
    ) -> None:
        self.session: Final = session
        self.code: Final = code
        self.handle: Final = handle
        self.release = release
        self.keep = keep

    def let_go(self) -> None:
        """Give up what was needed here; the kernel is done with it."""
        release, self.release, self.keep = self.release, None, None
        if release is not None:
            release()


class VerbSession:
    """What all objects of one context share; `doorbells` are those of the whole process.

    `trouble` is empty while all is well, else a sentence: the session is closed, forked or dead.
    `device_failed` tells that it was the device that died: its last event is the program's to get.
    """

    def __init__(
        self, process: UserProcess, device: "DeviceHandle", doorbells: "DoorbellWriter"
    ) -> None:
        self.process: Final = process
        self.device: Final = device
        self.doorbells: Final = doorbells
        self.queues: Final = QueueTable()
        self.forgotten: Final[deque[Resource]] = deque()
        self._clearing: Final = threading.Lock()
        self._destroyer = 0  # the thread that clears
        self.trouble = ""
        self.dead = False
        self.device_failed = False
        self._on_death: list[Callable[[], None]] = []
        self.opened: Final = self.call(OpenContext, IOCTL_OPEN_CONTEXT)
        _sessions.add(self)

    # Verbs

    def require_usable(self) -> None:
        """Raise PyverbsUserError in a forked child, and when the context has been closed."""
        if self.trouble and not self.dead:
            raise PyverbsUserError(f"the object cannot be used: {self.trouble}")

    def call(self, reply: type[_M], code: int, request: VerbMessage | None = None) -> _M:
        """Ask a verb that answers with a message; VerbRefusal if it is refused."""
        try:
            return decode_as(reply, self._ask(code, request))
        except MessageError as error:
            raise VerbRefusal(
                errno.EPROTO, f"the answer to {VERB_NAMES[code]} is malformed: {error}"
            ) from error

    def do(self, code: int, request: VerbMessage | None = None) -> None:
        """Ask a verb that answers with nothing more."""
        self._ask(code, request)

    def destroy(self, resource: Resource) -> bytes:
        """Destroy a resource; give what was answered, nothing if the session is over anyway."""
        try:
            answer = self._ask(resource.code, Object(resource.handle))
        except VerbRefusal as refusal:
            if not refusal.session_is_over:
                raise
            answer = b""
        return answer

    def destroy_forgotten(self) -> None:
        """Destroy what went out of reach; parents after the children that still hold them."""
        if self._destroyer == threading.get_ident():
            return  # a verb of this very clearing
        with self._clearing:
            self._destroyer = threading.get_ident()
            try:
                self._clear()
            finally:
                self._destroyer = 0

    def _clear(self) -> None:
        waiting: list[Resource] = []
        progress = True
        try:
            while progress:
                progress = False
                while self.forgotten:
                    waiting.append(self.forgotten.popleft())
                for resource in waiting[:]:
                    if self._destroyed(resource):
                        waiting.remove(resource)
                        resource.let_go()
                        progress = True
        finally:
            self.forgotten.extend(waiting)

    def _destroyed(self, resource: Resource) -> bool:
        """Destroy one; False if something on it is there still."""
        try:
            self.destroy(resource)
        except VerbRefusal as refusal:
            return refusal.errno != errno.EBUSY
        return True

    def _ask(self, code: int, request: VerbMessage | None) -> bytes:
        self.require_usable()
        if self.forgotten:
            self.destroy_forgotten()
        output = bytearray(VERB_OUTPUT_LENGTH)
        try:
            payload = None if request is None else encode(request)
            length = self.device.device_io_control(code, payload, output)
        except SofthcaError as error:
            raise self.refused(error) from error
        return self._judged(output, length)

    def refused(self, error: SofthcaError) -> Exception:
        """Give what to raise for a call that did not get through to the driver and back."""
        if isinstance(error, ForkedProcess | CallInProgress):
            return PyverbsUserError(str(error))
        ended = isinstance(error, NtStatusError) and error.status in _SESSION_HAS_ENDED
        if isinstance(error, NtStatusError) and not ended:
            return VerbRefusal(error.errno or errno.EIO, str(error))
        over = ended or isinstance(error, KernelDied | ConnectionClosed)
        if over:
            self.die(str(error))
        return VerbRefusal(errno.EIO, str(error), over)

    def _judged(self, output: bytearray, length: int) -> bytes:
        """Give what follows the result; a refusal becomes an exception."""
        if length < VERB_RESULT.size:
            raise VerbRefusal(errno.EPROTO, f"the driver answered with {length} bytes")
        number, reason, about, detail = VERB_RESULT.unpack_from(output)
        if number:
            text = reason_text(reason, about, detail)
            is_over = reason == VerbReason.DEVICE_FATAL
            if is_over:
                self.die(text, device_failed=True)
            raise VerbRefusal(number, text, is_over, detail, reason)
        return bytes(output[VERB_RESULT.size : length])

    # The end

    def when_dead(self, routine: Callable[[], None]) -> None:
        """Have a routine called once nothing will come from the device any more."""
        self._on_death.append(routine)
        if self.dead:
            routine()

    def die(self, reason: str, *, device_failed: bool = False) -> None:
        """Note that device or kernel has ended; every waiter is woken. From any thread."""
        if not self.trouble:
            self.trouble = reason
        self.device_failed = self.device_failed or device_failed
        self.dead = True
        for routine in list(self._on_death):
            routine()

    def trouble_error(self, text: str) -> PyverbsError:
        """Give the exception for a use now that there is trouble."""
        if self.dead:
            return PyverbsRDMAError(text, errno.EIO, reason=self.trouble)
        return PyverbsUserError(f"{text}: {self.trouble}")

    def close(self) -> None:
        """Close the file: the driver frees what is left, leaf to root."""
        if self.trouble == FORKED:
            raise PyverbsUserError(f"the context cannot be closed: {FORKED}")
        if not self.dead:
            self.destroy_forgotten()
        over = self.dead and not self.device_failed  # then there is no kernel to tell
        self.trouble = CLOSED
        if not over:
            self.device.close()
        self.dead = False
        _sessions.discard(self)
        self._on_death.clear()  # whoever is told keeps the session, and with it its descriptors
        while self.forgotten:
            self.forgotten.popleft().let_go()
