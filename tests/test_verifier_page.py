"""docs/verifier.md: every code has a row, every row a test that exists and expects that code."""

import re
from pathlib import Path

import pytest

from kernel_proc.io_manager import verifier_codes
from kernel_proc.memory import dma_checks
from kernel_proc.scheduling.bugcheck import (
    DRIVER_VERIFIER_DETECTED_VIOLATION,
    DRIVER_VERIFIER_DMA_VIOLATION,
    DRIVER_VERIFIER_IOMANAGER_VIOLATION,
    NAMES,
)

ROOT = Path(__file__).resolve().parent.parent
SECTIONS = {
    "Bug checks": "bug check",
    "0xC4, by parameter 1": "0xC4",
    "0xC9, by parameter 1": "0xC9",
    "0xE6, by parameter 1": "0xE6",
}

#: Every bug check and parameter 1 such a machine could stop with.
BUG_CHECKS = "01 08 0A 0F 10 35 44 48 4A 76 B8 C7 CB D1 133"
C4 = """00 01 02 10 11 12 13 14 30 31 32 33 34 37 38 39 3A 3B 40 41 42 60 62 70 74 75 76 77 78 79 7A
7C 7D 7F 80 B0 C5 C6 E1 E2 E5 FA FB 105 11A 11B 120 121 122 123 135 140 1000 1001 1002 1003 1004
1005 1007 1008 1009 100A 100B 20003 20004 20005 20006 20007 2000F 20010 20011 20015 20016 20019
2001A 2001B 2001D 40003 40009"""
C9 = """
01 02 03 04 05 06 07 08 09 0C 0D 0E 10 203 205 206 207 208 209 20A 20B 20C 20D 213 214 224 225
226 227 228 229 238 239 23A 23C 23D 23E 24C 301 302 307 310 311 312"""

E6 = """00 01 02 03 04 05 06 07 08 09 0A 0B 0C 0D 0E 0F 10 11 13 14 15 16 18 19 1B 1D 1E 1F 20 21 22
23 24 25 26"""


def page_rows() -> list[tuple[str, list[int], str]]:
    """Check, codes and last column of every row."""
    rows = []
    section = ""
    for line in (ROOT / "docs" / "verifier.md").read_text().splitlines():
        if line.startswith("## "):
            section = line[3:]
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not line.startswith("| ") or cells[0] in ("code", "check"):
            continue
        check = SECTIONS.get(section) or cells.pop(0)
        rows.append((check, [int(code, 16) for code in cells[0].split(", ")], cells[-1]))
    return rows


ROWS = page_rows()
TESTED = [(check, code, test) for check, codes, test in ROWS for code in codes if "::" in test]


def codes_of(check: str) -> list[int]:
    return sorted(code for name, codes, _ in ROWS if name == check for code in codes)


def test_no_code_has_two_rows():
    for check in SECTIONS.values():
        assert len(codes_of(check)) == len(set(codes_of(check)))


@pytest.mark.parametrize(
    ("check", "known"), [("bug check", BUG_CHECKS), ("0xC4", C4), ("0xC9", C9), ("0xE6", E6)]
)
def test_every_known_code_has_a_row(check: str, known: str):
    wanted = {int(code, 16) for code in known.split()}
    assert sorted(wanted - set(codes_of(check))) == []


def test_every_code_of_the_kernel_has_a_row():
    others = {
        DRIVER_VERIFIER_DETECTED_VIOLATION,
        DRIVER_VERIFIER_IOMANAGER_VIOLATION,
        DRIVER_VERIFIER_DMA_VIOLATION,
    }
    assert sorted(set(NAMES) - others - set(codes_of("bug check"))) == []
    dma = {v for name, v in vars(dma_checks).items() if name.isupper() and type(v) is int}
    assert sorted(dma - set(codes_of("0xE6")) - {DRIVER_VERIFIER_DMA_VIOLATION}) == []
    mine = {value for name, value in vars(verifier_codes).items() if name.isupper()}
    assert mine
    assert sorted(mine - set(codes_of("0xC9")) - set(codes_of("0xC4"))) == []
    noted = re.compile(r"= (0x[0-9A-F]+)\b.*# .*verifier 0xC4")
    for path in (ROOT / "kernel_proc").rglob("*.py"):
        for match in noted.finditer(path.read_text()):
            assert int(match[1], 16) in codes_of("0xC4"), f"{match[0]} in {path.name}"


@pytest.mark.parametrize(
    ("check", "code", "test"), TESTED, ids=[f"{c}-{n:#x}" for c, n, _ in TESTED]
)
def test_the_test_of_each_row_exists_and_knows_its_code(check: str, code: int, test: str):
    file, name = test.split("::")
    text = (ROOT / "tests" / file).read_text()
    assert f"\ndef {name}(" in text
    if check == "bug check":
        assert NAMES[code] in text or f"{code:#x}" in text.lower()
    else:
        assert re.search(rf"\b0x0*{code:x}\b", text, re.IGNORECASE)


def test_there_are_rows():
    assert len(TESTED) > 90
    assert all(reason and "::" not in reason for _, _, reason in ROWS if "::" not in reason)
