"""Exceptions: one root, statuses in words, errno for those who catch OSError."""

import copy
import errno
import inspect

import pytest

from shared import nt_status
from user_proc import errors
from user_proc.errors import KernelRefused, NtStatusError, SofthcaError


def test_everything_has_one_root():
    found = [value for value in vars(errors).values() if inspect.isclass(value)]
    own = [value for value in found if value.__module__ == errors.__name__]
    assert len(own) > 8
    assert all(issubclass(value, SofthcaError) for value in own)


def test_a_status_is_an_os_error_with_readable_text():
    with pytest.raises(OSError, match="handle") as info:
        raise NtStatusError(nt_status.STATUS_ACCESS_DENIED)
    assert info.value.errno == errno.EACCES
    assert str(info.value) == (
        "STATUS_ACCESS_DENIED (0xC0000022): the handle was not granted the access this needs"
    )
    assert isinstance(info.value, SofthcaError)


def test_a_status_without_name_or_words():
    error = NtStatusError(0xCEADBEEF, 5)
    assert str(error).startswith("0xCEADBEEF: the driver completed")
    assert (error.errno, error.status, error.information) == (errno.EIO, 0xCEADBEEF, 5)


def test_every_status_known_has_some_text():
    for name, status in vars(nt_status).items():
        if name.startswith("STATUS_"):
            text = str(NtStatusError(status))
            assert f"(0x{status:08X}): " in text
            assert len(text) > 40


def test_a_refusal_keeps_the_kernels_own_reason():
    error = KernelRefused(nt_status.STATUS_QUOTA_EXCEEDED, "only 4096 bytes are left")
    assert str(error) == "the kernel refused: only 4096 bytes are left [STATUS_QUOTA_EXCEEDED]"
    assert error.errno == errno.EDQUOT


@pytest.mark.parametrize(
    "error", [NtStatusError(0xC0000022, 3), KernelRefused(0xC0000044, "why")], ids=type
)
def test_copies_say_the_same(error: NtStatusError):
    again = copy.copy(error)
    assert type(again) is type(error)
    assert str(again) == str(error)
    assert (again.status, again.errno) == (error.status, error.errno)
