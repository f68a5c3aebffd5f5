"""docs/faults.md says what the tests say, and every fault has tests."""

from shared.fault_points import DEVICE, DOOR, FAULT_POINTS
from tests.end_to_end.faults_page import (
    BEGIN,
    BETWEEN_PROCESSES,
    END,
    IN_PROCESS,
    PAGE,
    named_in,
    table,
)
from user_proc.faults.fault_words import FAULT_WORDS

MINUTES = {"completion-lost"}  # on a clock that is not virtual


def test_the_page_has_the_table_of_now():
    _, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    found, mark, _ = rest.partition(END)
    assert mark
    assert found == table(), "python -P -m tests.end_to_end.faults_page"


def test_every_point_has_words_and_tests():
    assert set(FAULT_WORDS) == set(FAULT_POINTS)
    assert set(named_in(IN_PROCESS)) == set(FAULT_POINTS)
    crossing = {name for name, point in FAULT_POINTS.items() if point.place in (DEVICE, DOOR)}
    assert crossing - MINUTES <= set(named_in(BETWEEN_PROCESSES))
