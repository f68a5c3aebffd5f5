"""Parent domains: a protection domain, and with it who gives the queues made on it their memory.

    alloc_func(pd, context, size, alignment, resource_type) -> address, None for none,
        or _IBV_ALLOCATOR_USE_DEFAULT
    free_func(pd, context, address, resource_type)

The memory of a queue must lie in an arena, page aligned, as the own buffer of an `MR` without
address does: the device shares it with this process. Anything else is EINVAL.

Rules: any thread; the functions are called by the thread that makes or destroys a queue, or by
the one whose verb comes after a queue that went out of reach.
Spec: rdma-core, pyverbs/pd.pyx; ibv_alloc_parent_domain(3).
"""

import errno
from collections.abc import Callable
from typing import Any, ClassVar, Final

from shared.segment import PAGE_SIZE
from user_proc.verbs.argument_types import optional, require
from user_proc.verbs.base import PyverbsObject
from user_proc.verbs.c_integers import CField, IntLike, to_u32, to_u64
from user_proc.verbs.device import Context
from user_proc.verbs.libibverbs_enums import (
    _IBV_ALLOCATOR_USE_DEFAULT,
    ibv_parent_domain_init_attr_mask,
)
from user_proc.verbs.protection_domain import PD
from user_proc.verbs.pyverbs_error import PyverbsRDMAError, PyverbsUserError
from user_proc.verbs.queue_memory import QueueAllocator, QueueBuffer
from user_proc.verbs.verb_session import VerbRefusal

_ALLOCATORS: Final = int(ibv_parent_domain_init_attr_mask.IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS)
_PD_CONTEXT: Final = int(ibv_parent_domain_init_attr_mask.IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT)

# What the memory is for, as ibverbs providers count: the driver's number, and the kind.
_OF_MTHCA: Final = 5 << 32
RESOURCE_QP: Final = _OF_MTHCA | 0
RESOURCE_SRQ: Final = _OF_MTHCA | 3
RESOURCE_CQ: Final = _OF_MTHCA | 4

AllocFunc = Callable[[PD, "ParentDomainContext", int, int, int], int | None]
FreeFunc = Callable[[PD, "ParentDomainContext", int, int], object]


class ParentDomainContext(PyverbsObject):
    """Who gives memory and takes it back; `user_data` is the program's own."""

    def __init__(
        self, pd: PD, alloc_func: AllocFunc, free_func: FreeFunc, user_data: Any = None
    ) -> None:
        super().__init__()
        self.pd: Final = require("pd", pd, PD)
        self.alloc_func: Final = alloc_func
        self.free_func: Final = free_func
        self.user_data = user_data


class ParentDomainInitAttr(PyverbsObject):
    """ibv_parent_domain_init_attr; `comp_mask` asks for allocators and their context."""

    comp_mask = CField(to_u32)

    def __init__(
        self, pd: PD, pd_context: ParentDomainContext | None = None, comp_mask: IntLike = 0
    ) -> None:
        super().__init__()
        self.pd: Final = require("pd", pd, PD)
        self.pd_context: Final = optional("pd_context", pd_context, ParentDomainContext)
        self.comp_mask = comp_mask
        if self.comp_mask & (_ALLOCATORS | _PD_CONTEXT) and self.pd_context is None:
            raise PyverbsUserError("comp_mask asks for allocators, but pd_context is None")


class _ProgramBuffer:
    """Memory a program gave: a view of the arena it lies in; given back by `release`."""

    def __init__(
        self, context: ParentDomainContext, address: int, view: memoryview, resource_type: int
    ) -> None:
        self._context: Final = context
        self._resource_type: Final = resource_type
        self.view: Final = view
        self.address = address
        self.length = len(view)

    def release(self) -> None:
        self.view.release()
        context = self._context
        try:
            context.free_func(context.pd, context, self.address, self._resource_type)
        except Exception:  # the queue is gone whatever the program's function says
            context.logger.exception("the parent domain's free function failed")


class _ProgramMemory:
    """What a program's functions are to the queues made on its domain."""

    def __init__(self, domain: "ParentDomain", context: ParentDomainContext, kind: int) -> None:
        self._domain: Final = domain
        self._context: Final = context
        self._kind: Final = kind

    def allocate(self, length: int, *, page_aligned: bool = False) -> QueueBuffer:
        context, process = self._context, self._domain._session.process
        given = context.alloc_func(context.pd, context, length, PAGE_SIZE, self._kind)
        address = to_u64(given or 0)
        if address == _IBV_ALLOCATOR_USE_DEFAULT:
            return process.allocate(length, page_aligned=page_aligned)
        if not address:
            raise VerbRefusal(errno.ENOMEM, "the parent domain's allocator gave no memory")
        view = None if address % PAGE_SIZE else process.arena_view(address, length)
        if view is None:
            context.free_func(context.pd, context, address, self._kind)
            raise VerbRefusal(
                errno.EINVAL,
                f"the parent domain's allocator gave {address:#x}, which is no page-aligned "
                "memory of an arena, such as the own buffer of an MR",
            )
        return _ProgramBuffer(context, address, view, self._kind)


class ParentDomain(PD):
    """A protection domain on another; it has that one's handle."""

    KIND: ClassVar[str] = "ParentDomain"
    CHILD_ORDER: ClassVar[tuple[str, ...]] = ("CQEX", *PD.CHILD_ORDER)

    def __init__(self, context: Context, attr: ParentDomainInitAttr) -> None:
        self._resource = None
        self._domain: PD | None = None
        owner = require("context", context, Context)
        wanted = require("attr", attr, ParentDomainInitAttr)
        self._begin(owner)
        self._imported = False
        if wanted.comp_mask & ~(_ALLOCATORS | _PD_CONTEXT):
            raise _refused(errno.EOPNOTSUPP, "comp_mask has unknown bits")
        if wanted.pd.context is not owner:
            raise _refused(errno.EINVAL, "the PD is another context's")
        wanted.pd.handle  # noqa: B018 - a closed domain has none
        self._allocates: Final = wanted.pd_context if wanted.comp_mask & _ALLOCATORS else None
        self._domain = wanted.pd
        wanted.pd.adopt(self)
        self.logger.debug("Allocated parent domain")

    @property
    def handle(self) -> int:
        """The handle of the domain it lies on; PyverbsUserError when it is closed."""
        domain = self._domain
        if domain is None:
            raise PyverbsUserError("the ParentDomain is closed")
        return domain.handle

    def queue_allocator(self, resource_type: int) -> QueueAllocator | None:
        """Give who allocates for a queue of this type; None for the library itself."""
        if self._allocates is None:
            return None
        return _ProgramMemory(self, self._allocates, resource_type)

    def close(self) -> None:
        """Close what was made on it; the domain below stays."""
        with self._closing:
            if self._domain is None:
                return
            self._close_children()
            self._domain.disown(self)
            self._domain = None
            self.logger.debug("Closed parent domain")


def _refused(number: int, reason: str) -> PyverbsRDMAError:
    return PyverbsRDMAError("Failed to allocate Parent Domain", number, reason=reason)
