"""Exit codes and sentences for every way a command ends."""

import errno
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import NoReturn

import pytest

from shared.nt_status import STATUS_ACCESS_DENIED
from user_proc.cli.main import app
from user_proc.cli.outcome import Ended, ending_signals, report_errors
from user_proc.errors import KernelNotRunning, NtStatusError, SofthcaError


def run(arguments: list[str]) -> object:
    return app(arguments, prog_name="softhca", standalone_mode=False)


def raising(error: BaseException) -> Callable[[], NoReturn]:
    def command() -> NoReturn:
        raise error

    return command


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (SofthcaError("it broke: mend it"), 1, "softhca: it broke: mend it"),
        (KernelNotRunning("x"), 3, "softhca: no kernel named 'x'"),
        (NtStatusError(STATUS_ACCESS_DENIED), 1, "softhca: STATUS_ACCESS_DENIED"),
        (OSError(errno.ENOSPC, "no space"), 1, "softhca: [Errno 28] no space"),
        (KeyboardInterrupt(), 130, "softhca: interrupted"),
        (Ended(signal.SIGINT), 130, "softhca: interrupted"),
        (Ended(signal.SIGTERM), 143, "softhca: ended by SIGTERM"),
        (SystemExit(2), 2, ""),
        (SystemExit(0), 0, ""),
        (SystemExit("words"), 1, ""),
    ],
)
def test_an_error_is_one_sentence_and_a_code(
    capsys: pytest.CaptureFixture[str], error: BaseException, code: int, words: str
):
    assert report_errors(raising(error)) == code
    printed = capsys.readouterr()
    assert printed.err.startswith(words)
    assert printed.err.count("\n") == (1 if words else 0)
    assert printed.out == ""


def test_a_wrong_command_line_is_one_sentence_that_names_the_help_page(
    capsys: pytest.CaptureFixture[str],
):
    for arguments, sentence in (
        (["nosuch"], "No such command 'nosuch'; see 'softhca --help'"),
        (["show", "--lim"], "No such option: --lim (Possible options: --limit); see 'softhca show"),
        (["show", "qp", "--limit", "x"], "Invalid value for '--limit': Input should be a valid"),
        (["launch"], "Missing argument 'FILE'; see 'softhca launch --help'"),
        (["kernel", "set-port", "1"], "Invalid value: nothing to set: name --pkey"),
        (["kernel", "set-port", "1", "--pkey", "3"], "Invalid value: '3': write INDEX=VALUE"),
    ):
        code = report_errors(lambda given=arguments: run(given))
        told = capsys.readouterr()
        assert (code, told.out, told.err.count("\n")) == (2, "", 1), arguments
        assert told.err.startswith(f"softhca: {sentence}")


def test_a_group_without_a_command_prints_its_help_alone(capsys: pytest.CaptureFixture[str]):
    assert report_errors(lambda: run(["kernel"])) == 2
    told = capsys.readouterr()
    assert told.err == ""
    assert "reset-hca" in told.out


def test_a_command_that_ends_early_has_its_code(capsys: pytest.CaptureFixture[str]):
    assert report_errors(lambda: run(["--version"])) == 0
    assert capsys.readouterr().out.startswith("softhca ")
    assert report_errors(lambda: run(["show", "nonsense"])) == 2


def test_no_error_is_zero():
    assert report_errors(lambda: None) == 0


def test_what_nobody_foresaw_is_not_hidden():
    with pytest.raises(ZeroDivisionError):
        report_errors(raising(ZeroDivisionError()))


@pytest.fixture
def handlers() -> Iterator[dict[int, object]]:
    """The handlers before the test, which are put back after it."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.getsignal(number) for number in numbers}
    yield dict(before)
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_the_first_signal_ends_and_later_ones_are_ignored(handlers: dict[int, object], number: int):
    cleaned: list[int] = []
    with pytest.raises(Ended) as ended, ending_signals():
        _signal_and_clean(number, cleaned)
    os.kill(os.getpid(), signal.SIGTERM)
    assert ended.value.number == number
    assert cleaned == [number]


def _signal_and_clean(number: int, cleaned: list[int]) -> None:
    try:
        os.kill(os.getpid(), number)
    finally:
        os.kill(os.getpid(), number)
        os.kill(os.getpid(), signal.SIGTERM)
        cleaned.append(number)


@pytest.mark.parametrize("error", [None, ValueError])
def test_without_a_signal_the_handlers_are_put_back(
    handlers: dict[int, object], error: type[Exception] | None
):
    with suppress(ValueError), ending_signals():
        assert signal.getsignal(signal.SIGTERM) != handlers[signal.SIGTERM]
        if error is not None:
            raise error
    assert {number: signal.getsignal(number) for number in handlers} == handlers
