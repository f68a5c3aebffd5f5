"""What all classes of the verbs have in common: a logger, `with`, and children closed first.

A parent holds its children weakly, a child its parents strongly. Whoever closes a parent closes
its children before, in the order its class gives.

Rules: any thread.
Spec: rdma-core, pyverbs/base.pyx.
"""

import ctypes
import logging
import threading
import weakref
from types import TracebackType
from typing import ClassVar, Self

from user_proc.verbs.pyverbs_error import PyverbsRDMAError

_KEY_VARIANTS = 0xFF


class PyverbsObject:
    """The root of all classes; `logger` is named after the class."""

    def __init__(self) -> None:
        self.logger = logging.getLogger(type(self).__name__)

    def set_log_level(self, val: int) -> None:
        """Have this class log from that level on."""
        self.logger.setLevel(val)


class PyverbsCM(PyverbsObject):
    """A class whose objects are closed by the end of a `with` statement."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        return self.close()

    def close(self) -> None:
        """Let go of what the object holds; a second time there is nothing left to do."""


class Parent(PyverbsCM):
    """Something that others are made on.

    `CHILD_ORDER` lists their kinds in the order of closing; a child's kind is its `KIND`.
    """

    KIND: ClassVar[str] = ""
    CHILD_ORDER: ClassVar[tuple[str, ...]] = ()

    def __init__(self) -> None:
        super().__init__()
        self._children: dict[str, weakref.WeakSet[Parent]] = {
            kind: weakref.WeakSet() for kind in self.CHILD_ORDER
        }
        self._closing = threading.RLock()

    def adopt(self, child: "Parent") -> None:
        """Close this child before oneself, unless it was closed or forgotten earlier."""
        self._children[child.KIND].add(child)

    def disown(self, child: "Parent") -> None:
        """Have nothing more to do with a child: it has another parent now."""
        self._children[child.KIND].discard(child)

    def _close_children(self) -> None:
        for kind in self.CHILD_ORDER:
            for child in list(self._children[kind]):
                child.close()


def PyverbsRDMAErrno(msg: str) -> PyverbsRDMAError:
    """Make (not raise) an error that carries the calling thread's errno."""
    return PyverbsRDMAError(msg, ctypes.get_errno())


def inc_rkey(rkey: int) -> int:
    """Give the next variant of a key: its low 8 bits count, and wrap."""
    return rkey & ~_KEY_VARIANTS | (rkey + 1) & _KEY_VARIANTS
