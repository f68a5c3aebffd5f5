"""The share of an overhead in a verb: arithmetic, and classes told apart."""

from collections.abc import Mapping
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.experiment_pages import unexplained
from user_proc.experiments.command_share import (
    CONNECTION,
    LITTLE,
    CommandShare,
    _first_little,
    _share,
)
from user_proc.experiments.experiment import Row

MEANS = (10, 100, 1_000, 10_000, 100_000)
BOUNDS = {"A": 1_000, "B": 10_000, "C": 100_000}


def verb(name: str, classes: str) -> Row:
    times = {f"at_{mean}_us": sum(min(mean, BOUNDS[c]) for c in classes) for mean in MEANS}
    row = {"verb": name, "outcome": "done", "commands": len(classes), "classes": classes}
    return {**row, "real_us": 90.0 * max(1, len(classes)), **times}


VERBS = [verb("alloc_pd", ""), verb("query_qp", "A"), verb("dereg_mr", "B")]
VERBS += [verb("destroy_qp", "CB"), verb(CONNECTION, "CCC")]


def silent(done: int, total: int, text: str) -> None:
    assert 0 <= done < total


def experiment(**overheads: float) -> CommandShare:
    def take_overheads(quick: bool, progress: Any) -> Mapping[str, float]:
        progress(0, 1, "overheads")
        return {"kernel": 2.5, "user": 90.0, "2005": 2.4, **overheads}

    return CommandShare(lambda quick, progress: [dict(row) for row in VERBS], take_overheads)


def test_each_verb_has_its_shares():
    rows = {row["verb"]: row for row in experiment().run(True, silent)}
    assert rows["alloc_pd"]["user_percent_at_10"] == 100
    assert rows["query_qp"]["user_percent_at_10"] == 90
    assert rows["query_qp"]["user_percent_at_bounds"] == rows["query_qp"]["user_percent_at_1000"]
    assert rows[CONNECTION]["kernel_little_from_us"] == 100
    assert rows["query_qp"]["kernel_little_from_us"] == 1_000
    assert rows["query_qp"]["user_little_from_us"] == "never"


def test_the_verdict_tells_classes_and_the_connection_apart():
    one = experiment()
    verdict = one.verdict(one.run(True, silent))
    assert (
        "A kernel client's IRP over a direct call (2.50 us): from a mean of 1,000 us on" in verdict
    )
    assert "never query_qp: 8.3 % at the bound of its class" in verdict
    assert "from a mean of 100 us on for a connection" in verdict
    assert "Verbs without a command (alloc_pd) are overhead alone." in verdict
    assert "Means below 90 us are of the virtual clock only" in verdict


def test_a_mean_under_which_the_machine_stopped_is_a_row():
    stopped = {"verb": "mean 10 us", "mean_us": 10, "outcome": "bug check 0xa"}
    one = CommandShare(
        lambda quick, progress: [*VERBS, dict(stopped)],
        lambda quick, progress: {"kernel": 1.0, "user": 1.0, "2005": 1.0},
    )
    rows = one.run(True, silent)
    assert rows[-1] == stopped
    assert one.verdict(rows)


@given(st.floats(0.01, 1e4), st.lists(st.floats(1, 1e6), min_size=1, max_size=12, unique=True))
def test_shares_fall_and_the_first_little_one_is_the_first(overhead: float, times: list[float]):
    shares = {int(1 + index): _share(overhead, us) for index, us in enumerate(sorted(times))}
    assert list(shares.values()) == sorted(shares.values(), reverse=True)
    first = _first_little(shares)
    little = [mean for mean, share in shares.items() if share < LITTLE]
    assert first == (min(little) if little else "never")


def test_its_page_explains_every_column():
    assert unexplained("command-share", experiment().run(True, silent)) == set()
