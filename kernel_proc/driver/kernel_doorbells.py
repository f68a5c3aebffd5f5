"""The kernel's own doorbell segment, UAR 0: made for the first kernel client, gone with the last.

Rules: PASSIVE_LEVEL in a kernel thread.
Spec: shared/doorbell_layout.py; Linux mthca_uar.c (driver_uar).
"""

import errno
import os
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from kernel_proc.driver.notification import notification_of
from kernel_proc.driver.refusal import VerbRefused
from kernel_proc.driver.resources import Resource
from shared.doorbell_layout import SEGMENT_LENGTH
from shared.segment import create_segment, map_segment
from shared.verb_reasons import VerbReason

if TYPE_CHECKING:
    from kernel_proc.driver.context import Context
    from kernel_proc.driver.hca_driver import HcaDriver

KERNEL_UAR: Final = 0


class KernelDoorbells:
    """The segment; `users` counts the contexts that ring in it."""

    def __init__(self, driver: "HcaDriver") -> None:
        self.users = 0
        self._segment = self._poke = -1
        try:
            self._segment = create_segment("softhca-doorbells-kernel", SEGMENT_LENGTH)
            self._mapping = map_segment(self._segment, SEGMENT_LENGTH)
            self._poke = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        except OSError as error:
            self._close_descriptors()
            raise VerbRefused(errno.ENOMEM, VerbReason.OUT_OF_MEMORY, 0, SEGMENT_LENGTH) from error
        self.view = memoryview(self._mapping)
        driver.link.add_doorbells(KERNEL_UAR, self._segment, self._poke)

    def close(self, driver: "HcaDriver") -> None:
        """Take the segment back; a client that kept its view keeps the pages alive, no more."""
        if driver.link.generation == driver.life:
            driver.link.remove_doorbells(KERNEL_UAR)
        self.view.release()
        with suppress(BufferError):
            self._mapping.close()
        self._close_descriptors()

    def _close_descriptors(self) -> None:
        for descriptor in (self._segment, self._poke):
            if descriptor >= 0:
                os.close(descriptor)
        self._segment = self._poke = -1


class DoorbellUse(Resource):
    """A context's use of the segment; every queue of the context holds it.

    `on_end` is called when it ends, before the segment may go.
    """

    kind = "kernel doorbells"

    __slots__ = ("doorbells", "on_end")

    def __init__(self, context: "Context") -> None:
        super().__init__(context)
        self.on_end: Callable[[], object] = lambda: None
        notification = notification_of(context.driver)
        if notification.kernel_doorbells is None:
            notification.kernel_doorbells = KernelDoorbells(context.driver)
        self.doorbells = notification.kernel_doorbells
        self.doorbells.users += 1

    def destroy(self, driver: "HcaDriver") -> None:
        """End the use; the last one takes the segment back."""
        self.on_end()
        self.doorbells.users -= 1
        if not self.doorbells.users:
            notification_of(driver).kernel_doorbells = None
            self.doorbells.close(driver)
