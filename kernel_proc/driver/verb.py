"""What a verb is to the dispatch routine: its handler and the message it takes.

A handler gets the HCA, the context, the decoded message (None if the verb takes none) and the
IRP; it returns the reply, None, or PENDED when it has marked the IRP pending and queued it.

Rules: PASSIVE_LEVEL in the caller's thread, which may wait; a refusal is VerbRefused.
Spec: docs/verbs-in-the-driver.md.
"""

from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from kernel_proc.driver.context import Context
    from kernel_proc.driver.hca_driver import HcaDriver
    from kernel_proc.io_manager.irp import Irp


class _Pended(Enum):
    PENDED = 1


PENDED: Final = _Pended.PENDED

Handler = Callable[["HcaDriver", "Context", Any, "Irp"], Any]


class Verb(NamedTuple):
    """One row of a module's VERBS table, {IOCTL code: Verb}."""

    handler: Handler
    request: type[Any] | None
    when_dead: bool = False  # served although the HCA is dead: notification of its death
