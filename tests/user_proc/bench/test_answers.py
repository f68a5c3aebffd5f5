"""What the run says in words: it follows the figures, whichever way they turn."""

from dataclasses import replace
from typing import Any

import pytest

from tests.user_proc.bench.synthetic import BLOCKS_PER_ROUND, by_question, row
from user_proc.bench.answers import answers_of
from user_proc.bench.full_plan import BASE, LARGEST, PAYLOADS, PROCESSES, kernel_row, plan_rows
from user_proc.bench.mail_answers import FAST_IO_2005, IRPS_2005
from user_proc.bench.row_plan import DEPTH
from user_proc.run_document import dump_strict

NEITHER = replace(BASE, method="neither")
INLINE = replace(NEITHER, completion="inline")
FAST = replace(INLINE, path="fast_io")


def answers(*rows: dict[str, Any]) -> list[dict[str, Any]]:
    return answers_of(rows, BLOCKS_PER_ROUND)


def test_a_run_of_the_whole_plan_answers_every_question():
    rows = [row(spec, 10.0 + index) for index, spec in enumerate(plan_rows())]
    found = answers(*rows)
    assert len(found) == 9
    assert all(answer["answer"].endswith(".") and answer["figures"] for answer in found)
    dump_strict(found)


def test_a_run_without_rows_answers_nothing():
    assert answers() == []
    assert answers(row(BASE, 100.0)) == []


# --- over a direct call -------------------------------------------------------------------------


def kernel_pair(irp: float, direct: float, spread: float = 0.01) -> list[dict[str, Any]]:
    return [row(kernel_row("irp"), irp, spread), row(kernel_row("direct"), direct, spread)]


def test_an_irp_dearer_than_a_direct_call():
    answer = by_question(answers(*kernel_pair(4.2, 1.8)), "over a direct call")
    assert "took 4.20 us, the same request by a direct call 1.80 us" in answer["answer"]
    assert "The IRP costs 2.40 us more (95 % interval 2." in answer["answer"]
    assert "2.33 times the direct call" in answer["answer"]
    assert answer["figures"]["difference_us"]["value"] == pytest.approx(2.4)
    assert answer["figures"]["ratio"]["value"] == pytest.approx(2.333, rel=0.01)


def test_an_irp_cheaper_than_a_direct_call():
    answer = by_question(answers(*kernel_pair(1.8, 4.2)), "over a direct call")
    assert "The IRP costs 2.40 us less" in answer["answer"]


def test_an_irp_that_cannot_be_told_from_a_direct_call():
    answer = by_question(answers(*kernel_pair(4.2, 4.0, spread=3.0)), "over a direct call")
    assert "The IRP: no difference shown (95 % interval -" in answer["answer"]
    assert "times the direct call" not in answer["answer"]


def test_other_kinds_of_irp_join_when_they_were_taken():
    rows = [*kernel_pair(4.2, 1.8), row(kernel_row("irp_reused"), 3.8)]
    answer = by_question(answers(*rows), "over a direct call")
    assert "One that is reused costs 2.00 us more" in answer["answer"]
    assert "IoBuildDeviceIoControlRequest" not in answer["answer"]


# --- over fast I/O ------------------------------------------------------------------------------


def fast_rows(gaps: dict[int, float]) -> list[dict[str, Any]]:
    rows = []
    for payload, gap in gaps.items():
        rows.append(row(replace(INLINE, payload=payload), 80.0 + gap, 1.0))
        rows.append(row(replace(FAST, payload=payload), 80.0, 1.0))
    return rows


def test_an_irp_over_fast_io_at_each_size():
    found = answers(*fast_rows({0: 0.1, 64: 12.0, 4096: -12.0}))
    answer = by_question(found, "over fast I/O")
    assert "took 92.0 us as an IRP. Against the same request as fast I/O" in answer["answer"]
    assert "taken in turn with it: 12.0 us more" in answer["answer"]
    assert "at 0 B no difference shown" in answer["answer"]
    assert "at 4 KiB 12.0 us less" in answer["answer"]
    payloads = [figure["payload"] for figure in answer["figures"]["difference_us"]]
    assert payloads == [0, 64, 4096]


# --- buffering ----------------------------------------------------------------------------------


def buffered_rows(*gaps: float, control: float = 0.0, spread: float = 0.5) -> list[dict[str, Any]]:
    rows = []
    for payload, gap in zip((0, *PAYLOADS[1:], LARGEST), (control, *gaps), strict=True):
        rows.append(row(replace(BASE, payload=payload), 100.0 + gap, spread))
        rows.append(row(replace(NEITHER, payload=payload), 100.0, spread))
    return rows


def test_mapping_wins_from_a_size_between_two():
    answer = by_question(answers(*buffered_rows(-5.0, 15.0, 90.0, 3000.0)), "buffering")
    assert "64 B: 5.00 us less" in answer["answer"]
    assert "64 KiB: 90.0 us more" in answer["answer"]
    assert "Mapping wins from about 1.0 KiB (95 % interval " in answer["answer"]
    assert "do the same: no difference shown" in answer["answer"]
    size = answer["figures"]["mapping_wins_from_bytes"]
    assert size["low"] <= size["value"] == 1072 <= size["high"]


def test_mapping_wins_everywhere():
    answer = by_question(answers(*buffered_rows(5.0, 15.0, 90.0, 3000.0)), "buffering")
    assert "Mapping wins at every size measured, from 64 B up." in answer["answer"]


def test_mapping_wins_nowhere():
    answer = by_question(answers(*buffered_rows(-5.0, -5.0, -9.0, -30.0)), "buffering")
    assert "Up to 1 MiB, mapping is not shown to win at any size." in answer["answer"]
    assert answer["figures"]["mapping_wins_from_bytes"] == {
        "value": None, "low": None, "high": None,
    }  # fmt: skip


def test_where_mapping_wins_can_be_open_to_both_sides():
    answer = by_question(answers(*buffered_rows(0.5, 1.0, 1.0, 2.0, spread=30.0)), "buffering")
    assert "95 % interval 64 B or less to beyond 1 MiB" in answer["answer"]


def test_a_difference_where_there_can_be_none_is_told_too():
    answer = by_question(answers(*buffered_rows(5.0, 5.0, 5.0, 5.0, control=9.0)), "buffering")
    assert "where the two methods do the same: 9.00 us more" in answer["answer"]


# --- 2005 ---------------------------------------------------------------------------------------


def rows_of_2005(irp: float, fast: float) -> list[dict[str, Any]]:
    return [
        row(replace(BASE, completion="inline", payload=0), irp),
        row(replace(FAST, payload=0), fast),
    ]


def test_the_figures_of_2005_against_a_smaller_ratio():
    answer = by_question(answers(*rows_of_2005(100.0, 80.0)), "2005")
    assert f"{IRPS_2005:,}" in answer["answer"]
    assert f"{FAST_IO_2005:,}" in answer["answer"]
    assert "4.42 to 1, 2.40 us apart" in answer["answer"]
    assert "10,000 IRPs a second" in answer["answer"]
    assert "is 1.25 times as fast (95 % interval 1.25 to 1.25)" in answer["answer"]
    assert "The IRP costs 20.0 us more" in answer["answer"]
    assert "The ratio is smaller here" in answer["answer"]
    assert answer["figures"]["slower_than_2005"]["irp"] == pytest.approx(32.2)


def test_the_figures_of_2005_against_a_larger_ratio():
    answer = by_question(answers(*rows_of_2005(100.0, 10.0)), "2005")
    assert "is 10.00 times as fast" in answer["answer"]
    assert "The ratio is smaller here" not in answer["answer"]


# --- share of a command -------------------------------------------------------------------------


def test_shares_of_each_class():
    answer = by_question(answers(*kernel_pair(4.3, 1.8)), "share")
    for words in (
        "0.25 % of a class A command (1 ms)",
        "0.025 % of a class B command (10 ms)",
        "0.0025 % of a class C command (100 ms)",
        "0.00025 % of a class D command (1,000 ms)",
        "8.3 % of a command of 30 us",
    ):
        assert words in answer["answer"]
    shares = answer["figures"]["kernel"]["percent_of_class"]
    assert shares["A"]["value"] == pytest.approx(0.25)
    assert shares["D"]["value"] == pytest.approx(0.00025)


def test_a_difference_not_shown_has_a_share_at_most():
    answer = by_question(answers(*kernel_pair(4.2, 4.0, spread=3.0)), "share")
    assert "no difference shown" in answer["answer"]
    assert "That is at most 0." in answer["answer"]


def test_an_irp_that_is_cheaper_has_no_share():
    answer = by_question(answers(*kernel_pair(1.8, 4.2)), "share")
    assert "2.40 us less" in answer["answer"]
    assert "so no share of a command" in answer["answer"]


# --- what the mail leads to ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pended", "words"), [(130.0, "costs 30.0 us more"), (70.0, "costs 30.0 us less"),
                          (100.1, "no difference shown")]
)  # fmt: skip
def test_a_pended_irp_against_a_blocking_call(pended: float, words: str):
    rows = [row(BASE, pended, 1.0), row(replace(BASE, path="blocking"), 100.0, 1.0)]
    assert words in by_question(answers(*rows), "waits in the driver")["answer"]


@pytest.mark.parametrize(
    ("each", "words"), [(3.0, "1.20 us less"), (6.0, "1.80 us more"), (4.2, "no difference shown")]
)
def test_what_a_dpc_saves_that_drains_many(each: float, words: str):
    many = row(replace(kernel_row("irp"), depth=DEPTH), 26.0, each=each)
    answer = by_question(answers(many, row(kernel_row("irp"), 4.2)), "drains 16")
    assert f"An IRP: {each:.2f} us each when one DPC drains 16, 4.20 us alone" in answer["answer"]
    assert words in answer["answer"]


def test_more_at_a_time():
    rows = [row(BASE, 100.0), row(replace(BASE, depth=DEPTH), 900.0, each=50.0)]
    rows += [row(replace(BASE, processes=n), 100.0 * n, each=100.0 / n) for n in PROCESSES]
    answer = by_question(answers(*rows), "more at a time")
    assert answer["answer"] == (
        "One at a time 10,000, 16 in flight 20,000, 2 processes 20,000, 4 processes 40,000, "
        "8 processes 80,000 a second."
    )


def test_what_the_verifier_costs():
    rows = kernel_pair(4.2, 1.8)
    rows += [
        row(replace(kernel_row("irp"), verifier=True), 16.2),
        row(replace(kernel_row("direct"), verifier=True), 1.8, 0.5),
    ]
    answer = by_question(answers(*rows), "verifier")
    assert "A kernel IRP: 12.0 us more" in answer["answer"]
    assert "A direct call: no difference shown" in answer["answer"]
