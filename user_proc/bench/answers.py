"""What the run says to the questions of the mail it was planned in, in words.

Every sentence is built from this run's rows. A row that was not taken, or could not keep its
schedule, takes its sentence with it; a difference that is not shown is said not to be shown.

Rules: made from a document's rows alone.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from user_proc.bench.answer_parts import Answer
from user_proc.bench.further_answers import (
    against_blocking,
    drained_together,
    many_at_a_time,
    verifier_cost,
)
from user_proc.bench.mail_answers import (
    against_2005,
    buffering,
    over_direct_call,
    over_fast_io,
    share_of_commands,
)
from user_proc.bench.row_figures import RowBook

_QUESTIONS: Final[tuple[Callable[[RowBook], Answer | None], ...]] = (
    over_direct_call,
    over_fast_io,
    buffering,
    against_2005,
    share_of_commands,
    against_blocking,
    drained_together,
    many_at_a_time,
    verifier_cost,
)


def answers_of(rows: Iterable[Mapping[str, Any]], blocks_per_round: int) -> list[Answer]:
    """Return the answers this run can give, in the order of the mail."""
    book = RowBook(rows, blocks_per_round)
    found = (question(book) for question in _QUESTIONS)
    return [answer for answer in found if answer is not None]
