"""The status table: values as published, names that are unique, severity tests."""

import pytest

from shared import nt_status
from shared.nt_status import nt_error, nt_success, status_name

PUBLISHED = {
    "STATUS_SUCCESS": 0,
    "STATUS_ABANDONED": 0x80,
    "STATUS_USER_APC": 0xC0,
    "STATUS_ALERTED": 0x101,
    "STATUS_TIMEOUT": 0x102,
    "STATUS_PENDING": 0x103,
    "STATUS_BUFFER_OVERFLOW": 0x80000005,
    "STATUS_NOT_IMPLEMENTED": 0xC0000002,
    "STATUS_ACCESS_VIOLATION": 0xC0000005,
    "STATUS_INVALID_HANDLE": 0xC0000008,
    "STATUS_INVALID_PARAMETER": 0xC000000D,
    "STATUS_INVALID_DEVICE_REQUEST": 0xC0000010,
    "STATUS_MORE_PROCESSING_REQUIRED": 0xC0000016,
    "STATUS_ACCESS_DENIED": 0xC0000022,
    "STATUS_INSUFFICIENT_RESOURCES": 0xC000009A,
    "STATUS_CANCELLED": 0xC0000120,
    "STATUS_INVALID_CONNECTION": 0xC0000140,
    "STATUS_NOT_FOUND": 0xC0000225,
}


@pytest.mark.parametrize(("name", "value"), PUBLISHED.items())
def test_published_values(name: str, value: int):
    assert getattr(nt_status, name) == value


def test_every_status_is_32_bits_and_values_are_shared_only_by_wait_aliases():
    values: dict[int, list[str]] = {}
    for name, value in vars(nt_status).items():
        if name.startswith("STATUS_"):
            assert 0 <= value <= 0xFFFFFFFF
            values.setdefault(value, []).append(name)
    shared_names = {tuple(names) for names in values.values() if len(names) > 1}
    assert shared_names == {
        ("STATUS_SUCCESS", "STATUS_WAIT_0"),
        ("STATUS_ABANDONED", "STATUS_ABANDONED_WAIT_0"),
    }


@pytest.mark.parametrize(
    ("status", "success", "error"),
    [
        (0x0EADBEEF, True, False),
        (0x4EADBEEF, True, False),
        (0x103, True, False),
        (0x80000005, False, False),
        (0x8EADBEEF, False, False),
        (0xC0000002, False, True),
        (0xCEADBEEF, False, True),
    ],
)
def test_severity(status: int, success: bool, error: bool):
    assert nt_success(status) is success
    assert nt_error(status) is error


def test_names():
    assert status_name(0) == "STATUS_SUCCESS"
    assert status_name(0xC0000022) == "STATUS_ACCESS_DENIED"
    assert status_name(0x80) == "STATUS_ABANDONED"
    assert status_name(0xCEADBEEF) == "0xCEADBEEF"
