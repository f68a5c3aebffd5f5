"""Calls `module:function` of a rank: `python -P -m user_proc.groups.function_runner TARGET ...`.

`--from FOLDER` before the target is searched after everything else, so that no module of it hides
one of Python's. The arguments behind the target are in `sys.argv`. What the function returns is the
exit code when it is an integer.

Rules: main thread of a process of its own.
"""

import importlib
import sys

from user_proc.errors import SofthcaError


def main(arguments: list[str]) -> int | str:
    """Find the function and call it; a sentence when there is none, or it fails on purpose."""
    if arguments[0] == "--from":
        sys.path.append(arguments[1])
        arguments = arguments[2:]
    target, *rest = arguments
    module, _, name = target.partition(":")
    try:
        function = getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as error:
        if error.name != module:
            raise
        return f"there is no module {module!r} on the path or beside the launch's file"
    except AttributeError:
        return f"the module {module!r} has no function {name!r}"
    sys.argv = [target, *rest]
    try:
        code = function()
    except SofthcaError as error:
        return f"{type(error).__name__}: {error}"
    return code if isinstance(code, int) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
