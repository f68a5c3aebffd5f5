"""Every case known of Windows' public test suites is a test whose name has its id."""

import re
from collections import defaultdict
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parent

#: W: Wine's driver tests; K: ReactOS' kernel tests; S: Microsoft's sample drivers; N: the
#: specification of NetworkDirect.
CASES = re.findall(
    r"\S+",
    """
    W1 W2 W3 W4 W5 W6 W8 W11 W13 W14 W14b W14c W16 W17 W18 W21 W21b W21c W21d W21e W23 W23b
    K1 K2 K2b K3 K3b K3c K4 K5 K6 K7 K8 K9 K10 K11 K12 K13 K14 K16 K18 K20 K20b K20c K21 K24
    K28 K30 K30b
    S1 S2 S3 S4 S4b S4c S4d
    N1 N2 N3
    """,
)
#: Those that are also asked by a real user process of a real kernel.
THROUGH_THE_DOOR = re.findall(r"\S+", "W1 W2 W3 W4 W5 W6 W8 W11 W13 K30 K30b S1 S2 S3 N1 N2 N3")


def ids_of_tests(*folders: Path) -> dict[str, list[str]]:
    """The names of the tests of each id, an id being a word of the name."""
    found: dict[str, list[str]] = defaultdict(list)
    for path in (path for folder in folders for path in folder.rglob("test_*.py")):
        for name in re.findall(r"^ *def (test_\w+)", path.read_text(), re.MULTILINE):
            for word in name.split("_"):
                found[word].append(name)
    return found


IN_PROCESS = ids_of_tests(TESTS / "kernel_proc", TESTS / "driver")
THROUGH = ids_of_tests(TESTS / "end_to_end")


@pytest.mark.parametrize("case", CASES)
def test_a_case_is_a_test_in_process(case: str):
    assert IN_PROCESS[case.lower()] or (case == "W11" and IN_PROCESS["w11a"] and IN_PROCESS["w11b"])


@pytest.mark.parametrize("case", THROUGH_THE_DOOR)
def test_a_case_of_user_programs_is_a_test_through_the_door(case: str):
    assert THROUGH[case.lower()]
