"""The experiment `contiguity`: rows are counted; a changed mechanism changes the verdict."""

import pytest

from kernel_proc.driver import memory_keys
from kernel_proc.experiments import fragmented_memory
from kernel_proc.experiments.catalogue import EXPERIMENTS
from kernel_proc.experiments.contiguity import Contiguity, Plan
from kernel_proc.experiments.contiguity_cells import CQ, MR, REFUSED, Object
from kernel_proc.experiments.contiguity_verdict import CREATE, MOVE
from kernel_proc.experiments.experiment import DONE, Row
from kernel_proc.experiments.fragmented_memory import use_frames
from kernel_proc.memory.page_frames import PageFrameAllocator
from tests.experiment_pages import unexplained

REGION = Object(MR, 3 << 20)
SMALL = Plan(
    objects=(Object(CQ, 1024), REGION),
    percents=(0, 90),
    timed=(REGION,),
    models=("prm-ceiling",),
    timed_percents=(0,),
    moved_percents=(0, 90),
    message=64 << 10,
)


def nothing(done: int, total: int, text: str) -> None:
    """Take no note of progress."""


def run(plan: Plan, *strategies: str) -> tuple[list[Row], str]:
    experiment = Contiguity((plan, plan), strategies)
    rows = experiment.run(True, nothing)
    return rows, experiment.verdict(rows)


def cell(rows: list[Row], strategy: str, wanted: Object, percent: int, **more: str) -> Row:
    labels = {"what": CREATE, "strategy": strategy, "model": "none", **more}
    labels |= {"object": wanted.kind, "bytes": wanted.length, "in_use_percent": percent}  # type: ignore[dict-item]
    (row,) = [row for row in rows if labels.items() <= row.items()]
    return row


def test_frames_are_used_as_much_as_asked_and_free_as_much_as_asked():
    for percent in (0, 1, 50, 95):
        frames = PageFrameAllocator(1 << 20)
        frames.allocate(100)
        use_frames(frames, percent, 10_000)
        assert frames.total - frames.used == 10_000
        runs = frames.allocate(10_000)
        assert runs is not None
        assert (len(runs) == 1) == (percent == 0)
        spread = runs[-1].start + runs[-1].count - runs[0].start
        assert 10_000 / spread == pytest.approx(1 - percent / 100, abs=0.02)
    with pytest.raises(ValueError, match="100 percent"):
        use_frames(PageFrameAllocator(100), 100, 1)


def test_what_runs_is_counted():
    assert EXPERIMENTS["contiguity"].question.endswith("?")
    rows, verdict = run(SMALL, "common-buffer", "smaller", "pages", "pool")
    whole, pages = (cell(rows, way, REGION, 0) for way in ("common-buffer", "pages"))
    assert (whole["pieces"], whole["write_mtt"]) == (1, 1)
    assert (pages["pieces"], pages["mtt_entries"], pages["write_mtt"]) == (768, 768, 2)
    assert whole["mtt_entries"] < pages["mtt_entries"]
    assert cell(rows, "common-buffer", REGION, 90)["outcome"] == REFUSED
    for way in ("smaller", "pages", "pool"):
        scattered = cell(rows, way, REGION, 90)
        assert (scattered["outcome"], scattered["mtt_entries"]) == (DONE, 768)
    assert cell(rows, "smaller", REGION, 90)["fallback_depth"] == 10
    assert {row["lost_bytes"] for row in rows if row["bytes"] == 1024} == {3072}
    ceiling = [
        cell(rows, way, REGION, 0, model="prm-ceiling") for way in ("common-buffer", "pages")
    ]
    assert [row["model_us"] for row in ceiling] == [20_000, 30_000]  # 10 ms for each command
    moved = {(r["strategy"], r["in_use_percent"]): r for r in rows if r["what"] == MOVE}
    assert moved["common-buffer", 0]["look_ups"] == 0
    assert moved["common-buffer", 90]["outcome"] == REFUSED
    assert (moved["pages", 90]["look_ups"], moved["pages", 0]["entries_spanned"]) == (34, 32)
    assert (
        "it takes 1 WRITE_MTT" in verdict or "takes 1 WRITE_MTT, page by page 768 and 2" in verdict
    )
    assert "common-buffer first fails with 90 % of the frames in use (MR of 3 MiB)" in verdict
    assert "smaller, pages and pool always get it" in verdict
    assert unexplained("contiguity", rows) == set()


def test_a_piece_that_is_not_aligned_saves_no_entry():
    wanted = Object(CQ, 64 << 10)
    plan = SMALL._replace(objects=(wanted,), percents=(5,), models=(), moved_percents=())
    rows, verdict = run(plan, "common-buffer", "pages")
    whole = cell(rows, "common-buffer", wanted, 5)
    assert (whole["pieces"], whole["mtt_entries"]) == (1, 16)
    assert "a CQ of 64 KiB in one piece has 16 entries, too" in verdict


def test_frames_that_stay_in_a_row_change_what_fails(monkeypatch: pytest.MonkeyPatch):
    def in_a_row(frames: PageFrameAllocator, percent: int, free: int) -> None:
        use_frames(frames, 0, free)

    monkeypatch.setattr(fragmented_memory, "use_frames", in_a_row)
    plan = SMALL._replace(objects=(REGION,), models=(), moved_percents=())
    _, verdict = run(plan, "common-buffer", "pages")
    assert "fails" not in verdict
    assert "common-buffer and pages always get it" in verdict


def test_a_mailbox_that_holds_all_entries_changes_what_contiguity_saves(
    monkeypatch: pytest.MonkeyPatch,
):
    plan = SMALL._replace(
        objects=(Object(MR, 64 << 10),), percents=(0,), models=(), moved_percents=()
    )
    _, verdict = run(plan, "common-buffer", "pages")
    assert "in one piece saves no command at any length" in verdict
    monkeypatch.setattr(memory_keys, "_PART", 8 * 8)  # eight entries a command
    _, verdict = run(plan, "common-buffer", "pages")
    assert "takes 1 WRITE_MTT, page by page 16 and 2" in verdict
