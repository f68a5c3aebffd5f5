"""What the rows of the experiment `contiguity` say, in words.

Facts of the device come first, then what fragmented memory takes, then this program's own time.

Rules: from the rows alone.
Spec: docs/allocation.md.
"""

from collections.abc import Sequence
from typing import Final

from kernel_proc.experiments.experiment import DONE, Row
from kernel_proc.experiments.sample_figures import listed
from kernel_proc.settings import KIB, MIB

CREATE: Final = "create"
MOVE: Final = "move messages"
IN_ONE_PIECE: Final = "common-buffer"
PAGE_BY_PAGE: Final = "pages"
SMALLER: Final = "smaller"
NO_MODEL: Final = "none"


def tell(rows: Sequence[Row], strategies: Sequence[str]) -> str:
    """Tell the device's part, the price in fragmented memory, and the emulator's part."""
    told = [
        _device(rows),
        _times(rows),
        _alignment(rows),
        _look_ups(rows),
        _fragmented(rows, strategies),
        _halving(rows),
        _rounding(rows),
        _emulator(rows),
    ]
    return " ".join(text for text in told if text)


def size(length: int) -> str:
    """Return a length as people write it."""
    return f"{length // MIB} MiB" if length >= MIB else f"{length // KIB} KiB"


def _name(row: Row) -> str:
    return f"{row['object']} of {size(row['bytes'])}"


def _pairs(rows: Sequence[Row], what: str, model: str, percent: int) -> list[tuple[Row, Row]]:
    """Return the same object in one piece and page by page, both made, by length."""

    def made(strategy: str) -> dict[tuple[str, int], Row]:
        chosen = (what, strategy, model, percent, DONE)
        keys = ("what", "strategy", "model", "in_use_percent", "outcome")
        return {
            (row["object"], row["bytes"]): row
            for row in rows
            if tuple(row[key] for key in keys) == chosen
        }

    whole, pages = made(IN_ONE_PIECE), made(PAGE_BY_PAGE)
    both = [(whole[key], pages[key]) for key in whole if key in pages]
    return sorted(both, key=lambda pair: int(pair[0]["bytes"]))


def _device(rows: Sequence[Row]) -> str:
    pairs = _pairs(rows, CREATE, NO_MODEL, 0)
    fewer = [pair for pair in pairs if pair[0]["write_mtt"] < pair[1]["write_mtt"]]
    if not fewer:
        return "For the device: in one piece saves no command at any length."
    whole, pages = fewer[-1]
    same = [pair[0]["bytes"] for pair in pairs if pair not in fewer]
    up_to = f"; up to {size(max(same))} it saves none" if same else ""
    return (
        f"For the device: in one piece a {_name(whole)} has {whole['mtt_entries']:.0f} MTT entries "
        f"and takes {whole['write_mtt']:.0f} WRITE_MTT, page by page {pages['mtt_entries']:.0f} "
        f"and {pages['write_mtt']:.0f}{up_to}."
    )


def _alignment(rows: Sequence[Row]) -> str:
    """Tell of a piece that saves no entry: its address is not aligned as its length is."""
    percents = sorted({row["in_use_percent"] for row in rows if row["in_use_percent"]})
    for percent in percents:
        for whole, pages in reversed(_pairs(rows, CREATE, NO_MODEL, percent)):
            if pages["mtt_entries"] > 1 and whole["mtt_entries"] == pages["mtt_entries"]:
                return (
                    f"With {percent} % of the frames in use a {_name(whole)} in one piece has "
                    f"{whole['mtt_entries']:.0f} entries, too: its bus address is aligned to a "
                    f"page, not to its length."
                )
    return ""


def _times(rows: Sequence[Row]) -> str:
    models = dict.fromkeys(row["model"] for row in rows if row["model"] != NO_MODEL)
    texts = []
    for model in models:
        pairs = _pairs(rows, CREATE, model, 0)
        if pairs:
            whole, pages = pairs[-1]
            texts.append(
                f"{whole['model_us']:,.0f} against {pages['model_us']:,.0f} us ({model}, "
                f"{_name(whole)})"
            )
    return f"Its creation takes {listed(texts)} of modelled device time." if texts else ""


def _look_ups(rows: Sequence[Row]) -> str:
    pairs = _pairs(rows, MOVE, NO_MODEL, 0)
    if not pairs:
        return ""
    whole, pages = pairs[-1]
    scattered = max(
        (row for row in rows if _moved_by(row, PAGE_BY_PAGE)), key=lambda row: row["in_use_percent"]
    )
    return (
        f"A message of {size(whole['bytes'])} spans {whole['entries_spanned']} MTT entries in one "
        f"piece, {pages['entries_spanned']} page by page; the emulated HCA looks up "
        f"{whole['look_ups']:.0f} and {scattered['look_ups']:.0f} (of pages with "
        f"{scattered['in_use_percent']} % of the frames in use: pages that lie in a row on its bus "
        f"it sees as one piece)."
    )


def _moved_by(row: Row, strategy: str) -> bool:
    return (row["what"], row["strategy"], row["outcome"]) == (MOVE, strategy, DONE)


def _fragmented(rows: Sequence[Row], strategies: Sequence[str]) -> str:
    never, first = [], []
    for strategy in strategies:
        short = [
            row
            for row in rows
            if row["what"] == CREATE
            and row["strategy"] == strategy
            and (row["outcome"] != DONE or row["made"] < row["attempts"])
        ]
        if not short:
            never.append(strategy)
            continue
        least = min(short, key=lambda row: (row["in_use_percent"], -row["bytes"]))
        smallest = min(short, key=lambda row: (row["bytes"], row["in_use_percent"]))
        first.append(
            f"{strategy} first fails with {least['in_use_percent']} % of the frames in use "
            f"({_name(least)}), and fails down to a {_name(smallest)}"
        )
    if never:
        first.append(f"{listed(never)} always get it")
    return f"As memory fragments {'; '.join(first)}."


def _halving(rows: Sequence[Row]) -> str:
    made = [row for row in rows if row["strategy"] == SMALLER and row.get("fallback_depth")]
    if not made:
        return ""
    deepest = max(made, key=lambda row: (row["fallback_depth"], row["in_use_percent"]))
    return (
        f"{SMALLER} halves up to {deepest['fallback_depth']} times: a {_name(deepest)} then lies "
        f"in {deepest['pieces']:,.0f} pieces and has {deepest['mtt_entries']:,.0f} MTT entries."
    )


def _rounding(rows: Sequence[Row]) -> str:
    lost = [row for row in rows if row.get("lost_bytes")]
    if not lost:
        return "Nothing is lost to rounding."
    worst = max(lost, key=lambda row: row["lost_bytes"])
    same = {row["lost_bytes"] for row in lost if _name(row) == _name(worst)}
    how = "by every strategy" if len(same) == 1 else f"by {worst['strategy']}"
    return f"Rounding loses at most {worst['lost_bytes']:.0f} bytes (a {_name(worst)}), {how}."


def _emulator(rows: Sequence[Row]) -> str:
    created, moved = _pairs(rows, CREATE, NO_MODEL, 0), _pairs(rows, MOVE, NO_MODEL, 0)
    texts = [
        f"{what} {whole['emulator_us']:,.0f} against {pages['emulator_us']:,.0f} us"
        for what, pairs in (("making the largest", created), ("moving a message", moved))
        for whole, pages in pairs[-1:]
    ]
    return f"In this emulator's own time, which is no device's: {listed(texts)}." if texts else ""
