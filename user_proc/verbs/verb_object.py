"""What the classes of kernel objects have in common: their life between creation and close.

`close` destroys the children first, then the object; a second time it does nothing. A refused
destruction raises and leaves the object as it was. An object that goes out of reach is destroyed
by the next verb of its context.

Rules: any thread.
"""

import errno
from typing import ClassVar, Final

from user_proc.verbs.base import Parent
from user_proc.verbs.printing import lines
from user_proc.verbs.pyverbs_error import PyverbsUserError
from user_proc.verbs.verb_session import Resource, VerbRefusal, VerbSession

_NOTHING_CHANGED: Final = 1  # what `detail` says of a region that is as it was


class VerbObject(Parent):
    """An object of a context; `DESTROY_TEXT` is what a failed close says."""

    DESTROY_TEXT: ClassVar[str]

    def __init__(self, session: VerbSession) -> None:
        self._resource: Resource | None = None
        self._session = session
        super().__init__()
        session.require_usable()  # before any memory is asked for

    @property
    def handle(self) -> int:
        """The kernel's handle, counted in its context; PyverbsUserError when it is closed."""
        resource = self._resource
        if resource is None:
            raise PyverbsUserError(f"the {self.KIND} is closed")
        return resource.handle

    def handle_for(self, session: VerbSession) -> int:
        """Give the handle for a verb of this session; VerbRefusal if that is another context's.

        Handles are counted in each context, so the driver would take it for one of its own.
        """
        handle = self.handle
        if self._session is not session:
            reason = f"the {self.KIND} is another context's"
            raise VerbRefusal(errno.EINVAL, reason, detail=_NOTHING_CHANGED)
        return handle

    def close(self) -> None:
        """Destroy the children, then the object itself."""
        with self._closing:
            resource = self._resource
            if resource is None:
                return
            self._close_children()
            self._before_destroy()
            try:
                answer = self._session.destroy(resource)
            except VerbRefusal as refusal:
                raise refusal.error(self.DESTROY_TEXT) from refusal
            self._resource = None
            try:
                self._after_destroy(resource.handle, answer)
            finally:  # also when the wait for acknowledgements is interrupted
                resource.let_go()
            self.logger.debug("Closed %s", self.KIND)

    def _before_destroy(self) -> None:
        """Do what must be done while the object still exists."""

    def _after_destroy(self, handle: int, answer: bytes) -> None:
        """Take what the driver said at the end; nothing if the session is over."""

    def __str__(self) -> str:
        return f"{self.KIND} (closed)\n" if self._resource is None else self._shown()

    def _shown(self) -> str:
        """Give what `str` tells of an object that is open."""
        return f"{self.KIND}\n" + lines(22, [("Handle", self.handle)])

    def __del__(self) -> None:
        resource = getattr(self, "_resource", None)
        if resource is not None:
            self._resource = None
            resource.session.forgotten.append(resource)
