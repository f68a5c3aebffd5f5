"""Which GIDs the ports have, as last asked: connecting needs no datagram for a path with a GRH.

A change of the port forgets what is known of it. What was asked while the port changed is not
kept.

Rules: PASSIVE_LEVEL to look, which may wait for a command; `forget` at any level.
Spec: Linux drivers/infiniband/core/cache.c.
"""

import errno
from typing import TYPE_CHECKING, Final

from kernel_proc.driver.refusal import VerbRefused
from kernel_proc.driver.subnet_queries import query_attribute
from kernel_proc.hca_abi.management_datagrams import ATTRIBUTE_GUID_INFO, GUIDS_PER_BLOCK
from shared.verb_reasons import VerbReason

if TYPE_CHECKING:
    from kernel_proc.driver.hca_driver import HcaDriver

_GUID_SIZE: Final = 8


class GidCache:
    """The blocks of GUIDs by port and number."""

    __slots__ = ("_blocks", "_changes")

    def __init__(self) -> None:
        self._blocks: dict[tuple[int, int], bytes] = {}
        self._changes = 0

    def forget(self, port: int) -> None:
        """Know nothing of a port any more."""
        self._changes += 1
        for key in [key for key in self._blocks if key[0] == port]:
            del self._blocks[key]

    def require(self, driver: "HcaDriver", port: int, index: int) -> None:
        """Refuse with EINVAL an entry of the table, within its length, that is empty."""
        block, place = divmod(index, GUIDS_PER_BLOCK)
        guids = self._blocks.get((port, block))
        if guids is None:
            changes = self._changes
            guids = query_attribute(driver, ATTRIBUTE_GUID_INFO, block, port)
            if changes == self._changes:
                self._blocks[port, block] = guids
        if not any(guids[place * _GUID_SIZE : (place + 1) * _GUID_SIZE]):
            raise VerbRefused(errno.EINVAL, VerbReason.EMPTY_SGID_INDEX, index)
