"""Finds a driver's code: `MODULE:ENTRY`, or `FILE.py:ENTRY` for a file outside the kernel's path.

The entry is `def driver_entry(driver: DriverObject) -> int`, under whatever name. Whatever is
wrong is one sentence that says what to do about it.

Rules: PASSIVE_LEVEL; importing blocks the machine, so drivers are loaded before it serves.
Spec: WDK, Writing a DriverEntry Routine.
"""

import importlib
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from kernel_proc.io_manager.driver_object import DriverObject

DriverEntry = Callable[["DriverObject"], int]

_LONGEST_TEXT: Final = 300


class DriverLoadFailed(Exception):
    """A driver was not loaded; the text is one sentence with the cure."""

    def __init__(self, specification: str, why: str) -> None:
        super().__init__(f"the driver {specification!r} was not loaded: {why}")


class DriverImage(NamedTuple):
    """A driver's code, imported; `module` is the name its functions know as theirs."""

    specification: str
    name: str
    module: str
    origin: str
    entry: DriverEntry


def import_driver(specification: str) -> DriverImage:
    """Import a driver and find its entry; DriverLoadFailed says what is wrong."""
    place, colon, name = specification.rpartition(":")
    if not colon or not place or not name.isidentifier():
        raise DriverLoadFailed(
            specification,
            "name it MODULE:ENTRY or FILE.py:ENTRY, for example mailbox.py:driver_entry",
        )
    if is_file(place):
        stem = Path(place).stem
        module = _import_file(specification, Path(place))
    else:
        stem = place.rpartition(".")[2]
        module = _import_module(specification, place)
    entry = _find_entry(specification, module, name)
    return DriverImage(
        specification, stem, module.__name__, getattr(module, "__file__", None) or "?", entry
    )


def is_file(place: str) -> bool:
    """Tell whether what stands before the colon is a file, not a module."""
    return "/" in place or place.endswith(".py")


def _import_module(specification: str, name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise _import_failed(specification, error) from error
        raise DriverLoadFailed(
            specification,
            f"the kernel finds no module {error.name!r}: put its folder into PYTHONPATH, or name "
            "its file, as in path/to/mailbox.py:driver_entry",
        ) from error
    except (Exception, SystemExit) as error:
        raise _import_failed(specification, error) from error


def _import_file(specification: str, path: Path) -> ModuleType:
    path = path.resolve()
    if not path.is_file():
        raise DriverLoadFailed(specification, f"there is no file {path}; look at the path")
    name = _module_name(path)
    if name in sys.modules:  # another entry of the same file
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise DriverLoadFailed(specification, f"{path.name} is no Python file; end its name in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise _import_failed(specification, error, str(path)) from error
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _module_name(path: Path) -> str:
    """Return a name nothing else has, so that a file `queue.py` is not the library's `queue`."""
    number = 1
    while True:
        name = f"driver_{path.stem}" + (f"_{number}" if number > 1 else "")
        taken = sys.modules.get(name)
        if taken is None or getattr(taken, "__file__", None) == str(path):
            return name
        number += 1


def _import_failed(specification: str, error: BaseException, origin: str = "") -> DriverLoadFailed:
    why = f"importing it raised {describe_error(error, origin)}; correct it there"
    return DriverLoadFailed(specification, why)


def _find_entry(specification: str, module: ModuleType, name: str) -> DriverEntry:
    entry = getattr(module, name, None)
    if not callable(entry):
        what = "no" if entry is None else f"a {type(entry).__name__} and no function"
        raise DriverLoadFailed(
            specification,
            f"{module.__name__!r} has {what} {name!r}: define 'def {name}(driver)' there"
            + _others(module),
        )
    import inspect  # takes long to import, and few starts name a driver

    try:
        signature = inspect.signature(entry)
    except ValueError:  # written in C, without one
        return entry  # type: ignore[no-any-return]  # what it returns is checked when it is called
    try:
        signature.bind(None)
    except TypeError as error:
        raise DriverLoadFailed(
            specification,
            f"{name!r} takes {signature}, and is called with the driver object alone: "
            f"let it be 'def {name}(driver)'",
        ) from error
    return entry  # type: ignore[no-any-return]  # what it returns is checked when it is called


def _others(module: ModuleType) -> str:
    import inspect

    functions = [
        name
        for name, value in vars(module).items()
        if inspect.isfunction(value) and value.__module__ == module.__name__ and name[0] != "_"
    ]
    return f", or name one of its functions ({', '.join(functions[:5])})" if functions else ""


def describe_error(error: BaseException, origin: str = "") -> str:
    """Return an exception's kind, text and place, in the file `origin` if it passed, in a line."""
    import traceback

    text = " ".join(str(error).split())[:_LONGEST_TEXT]
    kind = type(error).__name__
    if isinstance(error, SyntaxError) and error.filename is not None:
        return f"{kind}: {' '.join(error.msg.split())} ({error.filename}, line {error.lineno})"
    passed = traceback.extract_tb(error.__traceback__)
    frames = [frame for frame in passed if frame.filename == origin] or passed
    place = f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""
    return f"{kind}{': ' + text if text else ''}{place}"
