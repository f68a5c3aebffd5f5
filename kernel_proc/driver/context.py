"""One opening of the device: its objects by handle, and their end.

Handles are counted upwards and not given again before all 32 bits were used, so a stale handle
names nothing.

Rules: PASSIVE_LEVEL, any thread; verbs of one context may run at a time in several threads. The
run-down comes with the file's IRP_MJ_CLOSE, when no verb is under way any more.
Spec: WDK, IRP_MJ_CLEANUP and IRP_MJ_CLOSE; docs/verbs-in-the-driver.md.
"""

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, TypeVar

from kernel_proc.driver.doorbell_segments import Doorbells
from kernel_proc.driver.refusal import VerbRefused
from kernel_proc.driver.resources import Resource
from kernel_proc.scheduling.mutex import Mutex
from shared.verb_reasons import VerbReason

if TYPE_CHECKING:
    from kernel_proc.driver.hca_driver import HcaDriver
    from kernel_proc.io_manager.file_object import FileObject
    from kernel_proc.scheduling.process import KProcess

_R = TypeVar("_R", bound=Resource)

_LAST_HANDLE: Final = (1 << 32) - 1
_AT_ONCE: Final = 256  # objects ended or looked at, before others get the processor


class Context:
    """The objects of one open file; `driver` is the HCA's life in which it was opened.

    `slots` gives out the index words of the doorbell segment of `rings_for`: the process, or the
    kernel itself (None) when kernel code uses the file.
    """

    __slots__ = (
        "_next",
        "_objects",
        "closing",
        "driver",
        "file",
        "number",
        "process",
        "rings_for",
        "slots",
    )

    def __init__(
        self,
        driver: "HcaDriver",
        number: int,
        file: "FileObject | None",
        process: "KProcess | None",
    ) -> None:
        self.driver = driver
        self.number = number
        self.file = file
        self.process = process
        self.rings_for: KProcess | None = process
        self.slots = driver.share_slots(process)
        self.closing = False
        self._objects: dict[int, Resource] = {}
        self._next = 1

    def __str__(self) -> str:
        return f"context {self.number} of {self.process or 'the kernel'}"

    def __len__(self) -> int:
        return len(self._objects)

    @property
    def owner(self) -> "KProcess | None":
        """Whose share of the tables its objects count against; None: the kernel, which has none."""
        return self.rings_for

    @property
    def uar(self) -> int:
        """The number of the doorbell segment in this life of the HCA; 0 is the kernel's."""
        own = self.rings_for.doorbells if self.rings_for is not None else None
        if isinstance(own, Doorbells) and own.generation == self.driver.life:
            return own.number
        return 0

    def require_alive(self) -> None:
        """Refuse with EIO when the HCA this context was opened on is dead."""
        if self.driver.dead:
            raise VerbRefused(errno.EIO, VerbReason.DEVICE_FATAL)

    def ring_for_kernel(self) -> None:
        """Belong to kernel code from now on, in whatever process it was opened; no queue exists."""
        if self.rings_for is not None:
            self.driver.leave_slots(self.rings_for)
            self.rings_for = None
            self.slots = self.driver.share_slots(None)

    # Objects

    def add(self, resource: Resource, *parents: Resource) -> int:
        """Publish an object that is complete, holding its parents; return its handle.

        Cannot fail: whoever makes objects asks `require_room` before it begins.
        """
        while self._next in self._objects or not self._next:
            self._next = (self._next + 1) & _LAST_HANDLE
        resource.handle = self._next
        self._next = (self._next + 1) & _LAST_HANDLE
        resource.hold_parents(parents)
        self._objects[resource.handle] = resource
        self.driver.objects[self.process] += 1
        return resource.handle

    def require_room(self) -> None:
        """Refuse with ENOMEM when the process can have no more objects."""
        most = self.driver.profile.most_objects
        if self.process is not None and self.driver.objects[self.process] >= most:
            raise VerbRefused(errno.ENOMEM, VerbReason.OUT_OF_HANDLES, 0, most)

    def find(self, kind: type[_R], handle: int) -> _R:
        """Return a live object of a class (or of a class under it), or refuse with EINVAL."""
        resource = self._objects.get(handle)
        if resource is None or resource.dying:
            raise VerbRefused(errno.EINVAL, VerbReason.NO_SUCH_OBJECT, handle)
        if not isinstance(resource, kind):
            raise VerbRefused(errno.EINVAL, VerbReason.WRONG_KIND, handle)
        return resource

    def remove(self, resource: Resource) -> None:
        """Forget an object that is destroyed; its parents lose one user."""
        del self._objects[resource.handle]
        resource.hold_parents(())
        objects = self.driver.objects
        objects[self.process] -= 1
        if not objects[self.process]:
            del objects[self.process]

    def objects(self) -> list[Resource]:
        """Return the objects in order of their creation."""
        return list(self._objects.values())

    @contextmanager
    def holding(self, *resources: Resource) -> Iterator[None]:
        """Keep objects from being destroyed while a verb waits that will make them parents."""
        for resource in resources:
            resource.users += 1
        try:
            yield
        finally:
            for resource in resources:
                resource.users -= 1

    @contextmanager
    def locked(self, resource: Resource) -> Iterator[None]:
        """Have an object for oneself; refuse with EINVAL if it went away while it was waited for.

        The lock may be taken again by the thread that holds it.
        """
        if resource.busy is None:
            resource.busy = Mutex(self.driver.processor)
        mutex = resource.busy
        mutex.wait()
        try:
            if self._objects.get(resource.handle) is not resource:
                raise VerbRefused(errno.EINVAL, VerbReason.NO_SUCH_OBJECT, resource.handle)
            yield
        finally:
            mutex.release()

    def destroy(self, kind: type[_R], handle: int) -> _R:
        """Destroy an object nothing holds: what every destroy verb does.

        If the first command is refused the object can be used as before; after that it can only
        be destroyed again. Return the object, for the answer.
        """
        resource = self.find(kind, handle)
        with self.locked(resource):
            resource.require_unused()
            resource.dying = True
            try:
                resource.destroy(self.driver)
            except BaseException:
                resource.dying = False
                raise
            self.remove(resource)
        return resource

    # The end

    def run_down(self) -> int:
        """Destroy every object, leaf to root; return how many there were.

        What cannot be destroyed is logged and forgotten: its numbers stay taken, so that nobody
        is given what the HCA may still use.
        """
        self.closing = True
        count = len(self._objects)
        ended = 0
        while self._objects:
            for resource in self._next_to_end():
                self._end(resource)
                ended += 1
                if not ended % _AT_ONCE:
                    self.driver.processor.dispatcher.pause()
        self.driver.regions.forget(self)
        self.driver.leave_slots(self.rings_for)
        return count

    def _next_to_end(self) -> list[Resource]:
        """Return what ends before all others, else what nothing holds, else anything."""
        found = list(reversed(self._objects.values()))
        first = [one for one in found if one.ends_first]
        return first or [one for one in found if not one.users] or found[:1]

    def _end(self, resource: Resource) -> None:
        resource.dying = True
        try:
            resource.destroy(self.driver)
        except VerbRefused as refusal:
            self.driver.log(f"{self}: {resource} was not destroyed: {refusal}")
            resource.lose(self.driver)
        self.remove(resource)

    def inspect(self) -> dict[str, Any]:
        """Return whose it is and every object."""
        process = self.process
        return {
            "context": self.number,
            "process": str(process) if process is not None else "kernel",
            "process_number": process.number if process is not None else 0,
            "pid": process.process_id if process is not None else 0,
            "uar": self.uar,
            "dead": self.driver.dead,
            "closing": self.closing,
            "objects": self._inspect_objects(),
        }

    def _inspect_objects(self) -> list[dict[str, Any]]:
        objects = []
        for number, resource in enumerate(self.objects(), 1):
            objects.append(resource.inspect())
            if not number % _AT_ONCE:
                self.driver.processor.dispatcher.pause()
        return objects
