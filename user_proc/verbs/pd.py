"""Protection domains.

Spec: rdma-core, pyverbs/pd.pyx; ibv_alloc_pd(3).
"""

from typing import Any, ClassVar

from shared.verb_codes import IOCTL_ALLOC_PD, IOCTL_DEALLOC_PD
from shared.verb_messages import Object
from user_proc.verbs.argument_types import require_some
from user_proc.verbs.device import Context
from user_proc.verbs.pyverbs_error import PyverbsUserError
from user_proc.verbs.verb_object import VerbObject
from user_proc.verbs.verb_session import Resource, VerbRefusal


class PD(VerbObject):
    """A protection domain of a context: what may use which memory."""

    KIND: ClassVar[str] = "PD"
    CHILD_ORDER: ClassVar[tuple[str, ...]] = ("QP", "AH", "MR", "SRQ")
    DESTROY_TEXT: ClassVar[str] = "Failed to dealloc PD"

    def __init__(self, creator: Any) -> None:
        if not isinstance(require_some("creator", creator), Context):
            self._resource = None
            raise PyverbsUserError(f"Cannot create PD from {type(creator)}")
        super().__init__(creator.session())
        self.context = creator
        try:
            made = self._session.call(Object, IOCTL_ALLOC_PD)
        except VerbRefusal as refusal:
            raise refusal.error("Failed to allocate PD") from refusal
        self._resource = Resource(self._session, IOCTL_DEALLOC_PD, made.handle, keep=creator)
        creator.adopt(self)
        self.logger.debug("PD: Allocated ibv_pd")

    @property
    def handle(self) -> int:
        """The kernel's handle."""
        return self._handle

    @property
    def pd(self) -> int:
        """The same number: there is no C structure with an address."""
        return self._handle
