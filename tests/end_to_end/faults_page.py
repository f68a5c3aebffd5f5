"""The table in docs/faults.md: made of the points, of the words for them, and of the tests.

`python -P -m tests.end_to_end.faults_page` writes it into the page; `test_faults_page.py` compares.
"""

import ast
from collections import defaultdict
from pathlib import Path

from shared.fault_points import COUNTED, FAULT_POINTS, word_of
from user_proc.faults.fault_words import FAULT_WORDS

PAGE = Path(__file__).resolve().parents[2] / "docs" / "faults.md"
IN_PROCESS = tuple(
    Path(__file__).with_name(f"test_fault_{part}.py") for part in ("device", "link", "kernel")
)
BETWEEN_PROCESSES = (Path(__file__).with_name("test_fault_processes.py"),)
BEGIN, END = "<!-- faults:begin -->\n", "<!-- faults:end -->\n"


def named_in(paths: tuple[Path, ...]) -> dict[str, list[str]]:
    """The tests of files by the points they name, in their order."""
    found: dict[str, list[str]] = defaultdict(list)
    for path in paths:
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                texts = {one.value for one in ast.walk(node) if isinstance(one, ast.Constant)}
                for point in FAULT_POINTS:
                    if point in texts:
                        found[point].append(node.name)
    return found


def table() -> str:
    """The lines between the marks."""
    tests = named_in((*IN_PROCESS, *BETWEEN_PROCESSES))
    lines = [
        "| point | where | must have | may have | what happens | what a program sees | tests |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, point in FAULT_POINTS.items():
        words = FAULT_WORDS[name]
        needs = [*map(word_of, point.needs), *(["session or process"] if point.of_somebody else [])]
        takes = [*map(word_of, point.takes), *(["counts"] if point.counts else [])]
        names = [f"`{test}`" for test in tests[name]]
        cells = (
            f"`{name}`", point.place, ", ".join(needs) or "-", ", ".join(takes) or "-",
            words.happens, words.seen, ", ".join(names),
        )  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    counts = ", ".join(f"`{word}`" for word in COUNTED)
    lines += [
        "",
        f"*counts*: {counts}. The tests are in `tests/end_to_end/test_fault_*.py`: of real",
    ]
    lines += ["processes in `test_fault_processes.py`, else on a virtual clock.", ""]
    return "\n".join(lines)


def main() -> None:
    """Write the table into the page."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(before + BEGIN + table() + END + after, encoding="utf-8")


if __name__ == "__main__":
    main()
