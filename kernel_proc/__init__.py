"""The kernel process: scheduling, memory, I/O manager, drivers and the door for user processes."""

import sys
from os.path import dirname

import shared


def _refuse_foreign_shared() -> None:
    """Refuse to run with another package of the name `shared`, which would win silently."""
    own = f"{dirname(dirname(__file__))}/shared/__init__.py"
    found = shared.__file__ or repr(shared.__path__)
    if found == own:
        return
    sentence = (
        f"{__name__} needs the package 'shared' of {own}, but {found} comes first on the path: "
        "remove it from PYTHONPATH or from the environment"
    )
    # A program (-m, still being located) ends with the sentence alone, without a traceback.
    raise SystemExit(sentence) if sys.argv[:1] == ["-m"] else ImportError(sentence)


_refuse_foreign_shared()
