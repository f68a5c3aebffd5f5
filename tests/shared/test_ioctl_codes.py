"""Control codes: bit layout, and no two meanings with one code."""

import itertools

import pytest

from shared import ioctl_codes as codes


def test_layout():
    code = codes.ctl_code(0x8001, 0x805, codes.METHOD_NEITHER, codes.FILE_WRITE_ACCESS)
    assert code == 0x8001_0000 | 2 << 14 | 0x805 << 2 | 3
    assert codes.method_of(code) == codes.METHOD_NEITHER


@pytest.mark.parametrize(
    "arguments",
    [(0x10000, 0, 0, 0), (-1, 0, 0, 0), (1, 0x1000, 0, 0), (1, 0, 4, 0), (1, 0, 0, 4)],
)
def test_out_of_range_is_refused(arguments: tuple[int, int, int, int]):
    with pytest.raises(ValueError):
        codes.ctl_code(*arguments)


def test_noop_codes_are_distinct_and_keep_their_method():
    seen = set()
    for method, completion in itertools.product(range(4), range(3)):
        for code in (
            codes.noop_code(method, completion),
            codes.noop_code(method, completion, touch=False),
            codes.noop_fail_code(method, completion),
        ):
            assert codes.method_of(code) == method
            assert code >> 16 == codes.NOOP_DEVICE_TYPE
            seen.add(code)
    assert len(seen) == 4 * 3 * 3


def test_unknown_completion_is_refused():
    with pytest.raises(ValueError, match="completion 3"):
        codes.noop_code(codes.METHOD_BUFFERED, 3)


def test_benchmark_codes():
    assert codes.IOCTL_BENCHMARK_RUN == 0x8002_2000
    assert codes.IOCTL_QUERY_COUNTERS == 0x8002_2004
