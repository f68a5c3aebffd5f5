"""Whether a program that registers memory may fork.

Registered memory stays the parent's here whatever the child does, and queues are not mapped in a
child; the calls keep the order libibverbs asks for, so that a program that works here works there.

Spec: rdma-core, pyverbs/fork.pyx; ibv_fork_init(3).
"""

import errno

from user_proc.verbs.libibverbs_enums import ibv_fork_status
from user_proc.verbs.pyverbs_error import PyverbsRDMAError

_enabled = False
_too_late = False


def fork_init() -> None:
    """Prepare for forks; EINVAL once memory has been registered."""
    global _enabled
    if _too_late and not _enabled:
        raise PyverbsRDMAError(
            "Failed to init fork support",
            errno.EINVAL,
            reason="memory has been registered: call it before the first registration",
        )
    _enabled = True


def is_fork_initialized() -> int:
    """Give an ibv_fork_status."""
    status = ibv_fork_status.IBV_FORK_ENABLED if _enabled else ibv_fork_status.IBV_FORK_DISABLED
    return int(status)


def note_registration() -> None:
    """Note that memory is registered in this process."""
    global _too_late
    _too_late = True
