"""A thread's APC routines: expected, delivered, run, forgotten."""

import struct

import pytest

from user_proc.errors import ProtocolError
from user_proc.transport.user_apcs import UserApcs


def ids(*numbers: int) -> bytes:
    return struct.pack(f"<{len(numbers)}Q", *numbers)


def test_what_is_delivered_runs_in_that_order_once():
    apcs, ran = UserApcs(), []
    for number in range(4):
        apcs.expect(number, lambda n=number: ran.append(n))
    assert not apcs.run_due()
    apcs.deliver(ids(2, 0))
    apcs.deliver(ids(3))
    assert apcs.run_due()
    assert ran == [2, 0, 3]
    assert not apcs.run_due()
    apcs.deliver(ids(2, 1))
    assert apcs.run_due()
    assert ran == [2, 0, 3, 1]


def test_what_is_forgotten_or_never_expected_does_not_run():
    apcs, ran = UserApcs(), []
    apcs.expect(1, lambda: ran.append(1))
    apcs.forget(1)
    apcs.forget(1)
    apcs.deliver(ids(1, 99))
    assert not apcs.run_due()
    assert ran == []


@pytest.mark.parametrize("length", [1, 7, 9])
def test_half_an_id_is_none(length: int):
    with pytest.raises(ProtocolError, match="whole number of request ids"):
        UserApcs().deliver(bytes(length))
