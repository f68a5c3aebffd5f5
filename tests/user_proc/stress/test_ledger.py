"""The account: once, in order, as allowed."""

import pytest

from user_proc.stress.findings import DOUBLED, LOST, WRONG, Finding
from user_proc.stress.ledger import FLUSHED, OK, Account, Ledger, Posted
from user_proc.verbs.completion import WC


class Book:
    """A ledger with an account, and what has come back."""

    def __init__(self, *, in_order: bool = True) -> None:
        self.ledger = Ledger()
        self.account = Account(self.ledger, "the queue", in_order=in_order)
        self.back: list[tuple[str, int | None]] = []

    def post(self, what: str, *allowed: int, signaled: bool = True) -> int:
        def finish(wc: WC | None) -> None:
            self.back.append((what, None if wc is None else wc.status))

        return self.account.post(Posted(what, finish, frozenset(allowed or (OK,)), signaled))

    def take(self, number: int, status: int = OK) -> None:
        self.ledger.take(WC(wr_id=number, status=status), "the CQ")


def test_requests_come_back_once_and_in_order():
    book = Book()
    first, second = book.post("first"), book.post("second")
    book.take(first)
    book.take(second)
    assert book.back == [("first", OK), ("second", OK)]
    assert (len(book.account), book.ledger.completions) == (0, 2)
    with pytest.raises(Finding, match="has come back") as caught:
        book.take(first)
    assert caught.value.kind == DOUBLED


def test_a_completion_of_nothing_that_was_posted():
    with pytest.raises(Finding, match="never posted") as caught:
        Book().take(5)
    assert caught.value.kind == WRONG


def test_one_that_is_passed_over_is_lost():
    book = Book()
    book.post("first")
    second = book.post("second")
    with pytest.raises(Finding, match="before first did") as caught:
        book.take(second)
    assert caught.value.kind == LOST


def test_one_that_asked_for_no_completion_is_done_with_the_next():
    book = Book()
    book.post("first", signaled=False)
    book.take(book.post("second"))
    assert book.back == [("first", None), ("second", OK)]


def test_one_that_must_fail_leaves_a_completion_in_any_case():
    book = Book()
    book.post("first", FLUSHED, signaled=False)
    with pytest.raises(Finding, match="before first did"):
        book.take(book.post("second", FLUSHED), FLUSHED)


def test_a_status_that_is_not_allowed():
    book = Book()
    number = book.post("first")
    with pytest.raises(Finding, match=r"'WR flush error'.*instead of 'success'") as caught:
        book.take(number, FLUSHED)
    assert caught.value.kind == WRONG


def test_what_is_allowed_can_change_while_it_is_out():
    book = Book()
    first, second = book.post("first"), book.post("second")
    book.account.allow((FLUSHED,))
    book.take(first)
    book.account.allow((FLUSHED,), only=True)
    book.take(second, FLUSHED)
    assert book.back == [("first", OK), ("second", FLUSHED)]


def test_a_queue_that_was_reset_gives_nothing_any_more():
    book = Book()
    number = book.post("first")
    book.account.forget()
    with pytest.raises(Finding, match="went with its queue") as caught:
        book.take(number)
    assert caught.value.kind == DOUBLED


def test_a_shared_queue_gives_back_in_any_order():
    book = Book(in_order=False)
    first, second = book.post("first"), book.post("second")
    book.take(second)
    book.take(first)
    assert book.back == [("second", OK), ("first", OK)]
