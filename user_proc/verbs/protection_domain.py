"""Protection domains as such.

Spec: rdma-core, pyverbs/pd.pyx; ibv_alloc_pd(3).
"""

from typing import Any, ClassVar

from shared.verb_codes import IOCTL_ALLOC_PD, IOCTL_DEALLOC_PD, IOCTL_IMPORT_PD
from shared.verb_messages import Object
from user_proc.verbs.argument_types import require_some
from user_proc.verbs.c_integers import IntLike, to_u32
from user_proc.verbs.device import Context
from user_proc.verbs.pyverbs_error import PyverbsUserError
from user_proc.verbs.queue_memory import QueueAllocator
from user_proc.verbs.verb_object import VerbObject
from user_proc.verbs.verb_session import Resource, VerbRefusal


class PD(VerbObject):
    """A protection domain of a context, or one imported: what may use which memory."""

    KIND: ClassVar[str] = "PD"
    CHILD_ORDER: ClassVar[tuple[str, ...]] = ("ParentDomain", "QP", "AH", "MW", "MR", "SRQ")
    DESTROY_TEXT: ClassVar[str] = "Failed to dealloc PD"

    def __init__(self, creator: Any, *, handle: IntLike | None = None) -> None:
        if not isinstance(require_some("creator", creator), Context):
            self._resource = None
            raise PyverbsUserError(f"Cannot create PD from {type(creator)}")
        self._begin(creator)
        self._imported = handle is not None
        try:
            if handle is None:
                made = self._session.call(Object, IOCTL_ALLOC_PD)
            else:
                made = self._session.call(Object, IOCTL_IMPORT_PD, Object(to_u32(handle)))
        except VerbRefusal as refusal:
            text = "Failed to allocate PD" if handle is None else "Failed to import PD"
            raise refusal.error(text) from refusal
        self._resource = Resource(self._session, IOCTL_DEALLOC_PD, made.handle, keep=creator)
        creator.adopt(self)
        self.logger.debug("PD: Allocated ibv_pd")

    def _begin(self, context: Context) -> None:
        """Be an object of a context."""
        super().__init__(context.session())
        self.context = context

    def queue_allocator(self, resource_type: int) -> QueueAllocator | None:
        """Give who allocates the memory of a queue made on it; None for the library itself."""
        return None

    def unimport(self) -> None:
        """Drop an imported domain: what was made on it here is closed, the domain itself stays."""
        if not self._imported:
            raise PyverbsUserError("the PD was not imported")
        self.close()

    @property
    def pd(self) -> int:
        """The same number: there is no C structure with an address."""
        return self.handle
