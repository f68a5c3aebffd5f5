"""How a tool ends: exit codes, one sentence for an error, and signals that clean up first.

Exit codes: 0 done; 1 failed; 2 wrong usage; 130 Ctrl-C, 143 SIGTERM, 129 SIGHUP.

Rules: main thread only.
"""

import os
import signal
import sys
from collections.abc import Callable
from types import FrameType
from typing import Final, NoReturn

from user_proc.errors import InvalidInstanceName, SofthcaError
from user_proc.perftest.tool_errors import WrongOptions
from user_proc.verbs.pyverbs_error import PyverbsError

DONE: Final = 0
FAILED: Final = 1
WRONG_USAGE: Final = 2

_SIGNALLED: Final = 128
_ENDING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class EndedBySignal(BaseException):
    """A signal asked the tool to end; raised once, those after it are ignored."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number: Final = number


def _end(number: int, frame: FrameType | None) -> NoReturn:
    for other in _ENDING:
        signal.signal(other, signal.SIG_IGN)
    raise EndedBySignal(number)


def exit_code_of(name: str, run: Callable[[], None]) -> int:
    """Run a tool to its end, whatever that is; return its exit code.

    What signals did before they do again afterwards.
    """
    before = {number: signal.signal(number, _end) for number in _ENDING}
    try:
        run()
        sys.stdout.flush()
    except SystemExit as leaving:  # -h and -V
        return leaving.code if isinstance(leaving.code, int) else FAILED
    except (EndedBySignal, KeyboardInterrupt) as end:
        ended_by = end.number if isinstance(end, EndedBySignal) else int(signal.SIGINT)
        _complain(name, f"ended by {signal.Signals(ended_by).name}")
        return _SIGNALLED + ended_by
    except (WrongOptions, InvalidInstanceName) as error:
        _complain(name, str(error))
        return WRONG_USAGE
    except BrokenPipeError:
        # The reader has gone; nothing more may be written, not even at the interpreter's end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except (SofthcaError, PyverbsError, OSError) as error:
        _complain(name, str(error))
        return FAILED
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return DONE


def _complain(name: str, sentence: str) -> None:
    print(f"{name}: {sentence}", file=sys.stderr)
