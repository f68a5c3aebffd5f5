"""What an answer is made of.

Rules: made from a document's rows alone.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from user_proc.bench.row_figures import Figure
from user_proc.bench.wording import more_or_less

Answer = dict[str, Any]


def make_answer(
    question: str, sentences: Sequence[str], figures: Mapping[str, Any]
) -> Answer | None:
    """Return an answer as it stands in the document; None where there is nothing to say."""
    if not sentences:
        return None
    return {"question": question, "answer": " ".join(sentences), "figures": dict(figures)}


def versus(figure: Figure, thing: str) -> str:
    """Say that `thing` costs more, costs less, or is not shown to differ."""
    if not figure.shown:
        return f"{thing}: {more_or_less(figure)}."
    return f"{thing} costs {more_or_less(figure)}."
