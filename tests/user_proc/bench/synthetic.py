"""Rows of a document with figures of one's choosing."""

from collections.abc import Mapping, Sequence
from typing import Any

from user_proc.bench.row_identity import AnySpec

ROUNDS, BLOCKS_PER_ROUND = 5, 3
_PATHS = ("irp", "irp_built", "direct", "irp_reused", "fast_io", "blocking")


def wobble(centre: float, spread: float, step: int = 7) -> list[float]:
    """Block figures that lie evenly around a centre; another step gives another order."""
    count = ROUNDS * BLOCKS_PER_ROUND
    return [
        centre + spread * (2 * (index * step % count) / (count - 1) - 1) for index in range(count)
    ]


def row(
    spec: AnySpec, p50: float, spread: float = 0.01, each: float | None = None, **more: Any
) -> dict[str, Any]:
    """A row of the document: so many microseconds, give or take."""
    path, method = getattr(spec, "path", "irp"), getattr(spec, "method", "")
    kind = 2 * _PATHS.index(path) + (method == "neither")
    step = (7, 4, 2, 8, 11, 13)[kind % 6]  # so that rows do not move together
    return {
        **spec.as_dict(),
        "p50_us": p50,
        "block_p50_us": wobble(p50, spread, step),
        "floor_block_p50_us": [50.0] * (ROUNDS * BLOCKS_PER_ROUND),
        "block_each_us": wobble(p50 if each is None else each, spread, step),
        "round_p99_us": [2 * p50 + spread * number for number in range(ROUNDS)],
        "marks": [],
        **more,
    }


def by_question(answers: Sequence[Mapping[str, Any]], words: str) -> Mapping[str, Any]:
    """The one answer whose question contains these words."""
    (found,) = [answer for answer in answers if words in answer["question"]]
    return found
