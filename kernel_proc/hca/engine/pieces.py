"""Copies between scattered memory and scattered memory: runs as long as both sides go on.

The last 8 bytes of a message are stored after everything else, so whoever polls for the last
byte finds the rest.

Spec: IBA vol. 1, 9.5 (ordering is not promised; that the last byte comes last is what programs
that poll on memory rely upon).
"""

from collections.abc import Iterable
from typing import Final, TypeGuard

from kernel_proc.hca.device_memory import Piece, PrivateRun
from kernel_proc.hca.in_hand import Element
from kernel_proc.hca.packets import Data
from kernel_proc.hca.translation import Translation

LAST_BYTES: Final = 8
_ALL_BUT_LAST: Final = slice(None, -LAST_BYTES)
_THE_LAST: Final = slice(-LAST_BYTES, None)


def store(target: memoryview, source: memoryview) -> None:
    """Copy bytes between two views of one length, the last 8 after the others."""
    if len(target) > LAST_BYTES:
        target[_ALL_BUT_LAST] = source[_ALL_BUT_LAST]
        target[_THE_LAST] = source[_THE_LAST]
    else:
        target[:] = source


def store_data(target: Data, source: Data, is_end: bool) -> None:
    """Copy as many bytes as the source has; at the end of a message the last 8 come last."""
    if isinstance(target, memoryview) and isinstance(source, memoryview):
        if is_end:
            store(target, source)
        else:
            target[:] = source
        return
    targets, sources = _as_list(target), _as_list(source)
    total = sum(map(len, sources))
    held = min(total, LAST_BYTES) if is_end else 0
    _copy(cut(targets, 0, total - held), cut(sources, 0, total - held))
    _copy(cut(targets, total - held, held), cut(sources, total - held, held))


def _as_list(data: Data) -> list[memoryview]:
    return data if isinstance(data, list) else [data]


def _copy(targets: list[memoryview], sources: list[memoryview]) -> None:
    """Copy pieces that are as long together."""
    remaining = iter(targets)
    target = next(remaining, None)
    for piece in sources:
        source = piece
        while len(source):
            if target is None:
                return
            count = min(len(source), len(target))
            target[:count] = source[:count]
            source = source[count:]
            target = target[count:] if count < len(target) else next(remaining, None)


def cut(pieces: list[memoryview], start: int, length: int) -> list[memoryview]:
    """Return the part of pieces that begins `start` bytes in and is `length` long."""
    found = []
    for piece in pieces:
        if length <= 0:
            break
        if start >= len(piece):
            start -= len(piece)
            continue
        part = piece[start : start + length]
        found.append(part)
        length -= len(part)
        start = 0
    return found


def cut_elements(elements: list[Element], start: int, length: int) -> Iterable[Element]:
    """Yield the part of scatter/gather elements that begins `start` bytes in."""
    for address, size, key in elements:
        if length <= 0:
            return
        if start >= size:
            start -= size
            continue
        part = min(size - start, length)
        yield address + start, part, key
        length -= part
        start = 0


def reach_elements(
    translation: Translation, pd: int, rights: int, elements: list[Element], start: int, length: int
) -> memoryview | list[Piece]:
    """Return the memory of a part of scatter/gather elements, or raise TranslationFault."""
    if len(elements) == 1:
        address, _, key = elements[0]
        return translation.reach(key, pd, rights, address + start, length)
    found: list[Piece] = []
    for address, size, key in cut_elements(elements, start, length):
        memory = translation.reach(key, pd, rights, address, size)
        if isinstance(memory, memoryview):
            found.append(memory)
        else:
            found += memory
    return found


def is_shared(pieces: list[Piece]) -> TypeGuard[list[memoryview]]:
    """Say whether every piece is shared memory, so that it can be copied at once."""
    return not any(isinstance(piece, PrivateRun) for piece in pieces)
