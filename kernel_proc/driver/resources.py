"""What every object of a context has in common: its handle, its parents, and who uses it.

An object holds its parents: destroying what is held is EBUSY. Verbs on one object are serialised
by its lock, taken with `Context.locked`. What is being destroyed is not found any more.

Rules: PASSIVE_LEVEL; the lock is a KMUTEX, so its holder may wait.
Spec: docs/verbs-in-the-driver.md; Linux drivers/infiniband/core/uverbs (uobject life).
"""

import errno
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

from kernel_proc.driver.refusal import VerbRefused
from shared.verb_reasons import VerbReason

if TYPE_CHECKING:
    from kernel_proc.driver.context import Context
    from kernel_proc.driver.hca_driver import HcaDriver
    from kernel_proc.scheduling.mutex import Mutex


class Resource(ABC):
    """One object; `handle` is 0 until `Context.add` has published it.

    `users` counts the objects that hold it, and verbs that are about to (`Context.holding`).
    """

    kind: ClassVar[str] = "object"
    ends_first: ClassVar[bool] = False  # in a run-down, whatever else there is

    __slots__ = ("busy", "context", "dying", "handle", "parents", "users")

    def __init__(self, context: "Context") -> None:
        self.context = context
        self.handle = 0
        self.parents: tuple[Resource, ...] = ()
        self.users = 0
        self.dying = False
        self.busy: Mutex | None = None  # made when first needed

    def __str__(self) -> str:
        return f"{self.kind} {self.handle}"

    @abstractmethod
    def destroy(self, driver: "HcaDriver") -> None:
        """Take the object back from the HCA and give its memory and numbers back.

        May be called again after a VerbRefused. If its first command was refused the object is as
        it was; later it goes on where it stopped. On a dead HCA the commands that take things back
        succeed without being sent.
        """

    def lose(self, driver: "HcaDriver") -> None:  # noqa: B027 - most have nothing to keep
        """Be let go although `destroy` was refused: what the HCA may use is kept from others."""

    def attributes(self) -> dict[str, Any]:
        """Return what `inspect` shows beside kind, handle and users: plain values."""
        return {}

    def inspect(self) -> dict[str, Any]:
        """Return the object as plain values."""
        return {
            "kind": self.kind,
            "handle": self.handle,
            "users": self.users,
            "parents": [[parent.kind, parent.handle] for parent in self.parents],
            **self.attributes(),
        }

    def require_unused(self) -> None:
        """Refuse with EBUSY while something holds the object."""
        if self.users:
            raise VerbRefused(errno.EBUSY, VerbReason.IN_USE, self.handle, self.users)

    def hold_parents(self, parents: "tuple[Resource, ...]") -> None:
        """Have these parents from now on, and let go of those it had."""
        for parent in parents:
            parent.users += 1
        for parent in self.parents:
            parent.users -= 1
        self.parents = parents
