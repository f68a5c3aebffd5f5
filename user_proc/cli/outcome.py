"""How a command ends: exit codes, one sentence for an error, and signals that clean up first.

Rules: main thread only.
"""

import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Any, Final, NoReturn

import typer

from user_proc.errors import (
    InvalidInstanceName,
    KernelNotRunning,
    SofthcaError,
    WrongKernelSetting,
    WrongUsage,
)

DONE: Final = 0
FAILED: Final = 1
WRONG_USAGE: Final = 2
NOT_RUNNING: Final = 3
_SIGNALLED: Final = 128
_ENDING_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Ended(BaseException):
    """A signal asked the command to end; raised once, in the main thread."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


@contextmanager
def ending_signals() -> Iterator[None]:
    """Turn the first signal that asks for the end into `Ended`; ignore those after it.

    So what the command does on its way out is not interrupted by an impatient second Ctrl-C.
    """

    def end(number: int, frame: FrameType | None) -> NoReturn:
        for other in _ENDING_SIGNALS:
            signal.signal(other, signal.SIG_IGN)
        raise Ended(number)

    before = {number: signal.getsignal(number) for number in _ENDING_SIGNALS}
    for number in _ENDING_SIGNALS:
        signal.signal(number, end)
    try:
        yield
    except Ended:
        raise  # on its way out the process goes on ignoring them, to its very end
    except BaseException:
        _restore(before)
        raise
    else:
        _restore(before)


def _restore(handlers: Mapping[signal.Signals, Any]) -> None:
    for number, handler in handlers.items():
        signal.signal(number, handler)


def complain(sentence: str) -> None:
    """Say on standard error what went wrong."""
    print(f"softhca: {sentence}", file=sys.stderr)


def report_errors(command: Callable[..., Any]) -> int:
    """Run the command line; return the exit code its end stands for.

    A command that ended early may return its code, as Typer's do outside of standalone mode.
    """
    try:
        code = command()
    except SystemExit as leaving:
        return leaving.code if isinstance(leaving.code, int) else FAILED
    except typer.TyperException as error:
        return _report_usage(error)
    except (Ended, KeyboardInterrupt) as end:
        number = end.number if isinstance(end, Ended) else signal.SIGINT
        complain("interrupted" if number == signal.SIGINT else f"ended by {end}")
        return _SIGNALLED + number
    except KernelNotRunning as error:
        complain(str(error))
        return NOT_RUNNING
    except (InvalidInstanceName, WrongKernelSetting, WrongUsage) as error:
        complain(str(error))
        return WRONG_USAGE
    except SofthcaError as error:
        complain(str(error))
        return FAILED
    except BrokenPipeError:
        # The reader has gone; nothing more may be written, not even at the interpreter's end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except OSError as error:
        complain(str(error))
        return FAILED
    return code if isinstance(code, int) else DONE


def _report_usage(error: typer.TyperException) -> int:
    """Say in one sentence what was wrong on the command line, and where to read what is right.

    A group without a command has printed its help page, and has nothing to say.
    """
    sentence = " ".join(error.format_message().split()).removesuffix(".")
    context: typer.Context | None = getattr(error, "ctx", None)
    if sentence:
        page = f"; see '{context.command_path} --help'" if context is not None else ""
        complain(sentence + page)
    return WRONG_USAGE
