"""The HCA's status page: written by the HCA, looked at by every user, who must not write it.

Users get a descriptor opened for reading; so that they cannot open it anew for writing, writing is
sealed away for everybody but those who had it mapped before: kernel and HCA.

Rules: dispatcher's OS thread; the HCA has mapped the page before the first user gets it.
Spec: fcntl(2), F_SEAL_FUTURE_WRITE (Linux 5.1); shared/doorbell_layout.py.
"""

import contextlib
import fcntl
import os
from typing import Final

from shared.doorbell_layout import STATUS_FATAL_WORD, STATUS_PAGE_LENGTH, WORD
from shared.live_words import words64
from shared.segment import map_segment

_F_SEAL_FUTURE_WRITE: Final = 0x10  # the module has no name for it
_SIZE_SEALS: Final = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW


class StatusPage:
    """One page; `descriptor` is for the HCA, and for nobody else."""

    def __init__(self) -> None:
        flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
        self.descriptor = os.memfd_create("softhca-status", flags)
        try:
            os.posix_fallocate(self.descriptor, 0, STATUS_PAGE_LENGTH)
            fcntl.fcntl(self.descriptor, fcntl.F_ADD_SEALS, _SIZE_SEALS)
            self.view = memoryview(map_segment(self.descriptor, STATUS_PAGE_LENGTH))
        except BaseException:
            os.close(self.descriptor)
            raise
        self._sealed = False

    def descriptor_for_users(self) -> int:
        """Return a descriptor that nobody can map for writing; it is the caller's to close.

        OSError if this system has no such seal.
        """
        if not self._sealed:
            seals = _F_SEAL_FUTURE_WRITE | fcntl.F_SEAL_SEAL
            fcntl.fcntl(self.descriptor, fcntl.F_ADD_SEALS, seals)
            self._sealed = True
        return os.open(f"/proc/self/fd/{self.descriptor}", os.O_RDONLY | os.O_CLOEXEC)

    def set_fatal(self, code: int) -> None:
        """Tell users that the device is dead, in place of the HCA, which has ended."""
        place = STATUS_FATAL_WORD * WORD
        words64(self.view[place : place + WORD])[0] = code

    def close(self) -> None:
        """Give the descriptor back; the mapping, which has its own, goes with its last view."""
        if self.descriptor >= 0:
            with contextlib.suppress(OSError):
                os.close(self.descriptor)
            self.descriptor = -1
            self.view = memoryview(bytearray(STATUS_PAGE_LENGTH))
