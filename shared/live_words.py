"""The words that two processes use at once: how they are read, written and ordered.

A live word is 8 (or 4) bytes at its own alignment, has one writer, and is touched through a
memoryview cast to "Q" (or "I") only: one aligned load or store each. `struct.pack_into` is for
bodies that are not published yet, as it zeroes its target first.

Order: body, then `publish_fence`, then the word that publishes it. Before a load that must not
overtake an own store (ring, then look whether the other sleeps; announce sleep, then look once
more), `full_fence`.
"""

import os
import threading
from typing import Final

_fence_lock: Final = threading.Lock()
_STORES_STAY_IN_ORDER: Final = os.uname().machine in ("x86_64", "i686")


def words64(view: memoryview) -> memoryview:
    """View memory, aligned to 8 bytes, as live words."""
    return view.cast("B").cast("Q")


def words32(view: memoryview) -> memoryview:
    """View memory, aligned to 4 bytes, as words of 4 bytes."""
    return view.cast("B").cast("I")


def full_fence() -> None:
    """Let no later load overtake an earlier store: an uncontended lock is a locked operation."""
    with _fence_lock:
        pass


def _no_fence() -> None:
    """Order stores where the processor does it by itself."""


#: Let no later store overtake an earlier one.
publish_fence: Final = _no_fence if _STORES_STAY_IN_ORDER else full_fence

#: `full_fence` for who has just released a lock: on x86 that is a locked operation itself.
fence_after_unlock: Final = publish_fence
