"""The exceptions of the verbs: the base, one with an errno, and the caller's own mistake.

Spec: rdma-core, pyverbs/pyverbs_error.pyx.
"""

import os


class PyverbsError(Exception):
    """The base; keeps nothing but the message."""

    def __init__(self, msg: str, error_code: int = -1) -> None:
        super().__init__(msg)


class PyverbsRDMAError(PyverbsError):
    """A verb failed: `error_code` is an errno, -1 if there is none.

    `reason` says why, in a sentence; it is what the text ends with.
    """

    def __init__(self, msg: str, error_code: int = -1, *, reason: str = "") -> None:
        text = msg
        if error_code != -1:
            text = f"{msg}. Errno: {error_code}, {os.strerror(error_code)}"
        if reason:
            text = f"{text}: {reason}"
        super().__init__(text)
        self._error_code = error_code
        self._reason = reason

    @property
    def error_code(self) -> int:
        """The errno, -1 for none."""
        return self._error_code

    @property
    def reason(self) -> str:
        """Why it failed; empty if nobody said."""
        return self._reason

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), str(self), self._error_code, self._reason)


class PyverbsUserError(PyverbsError):
    """Wrong use, found before anything was asked of the device."""

    def __init__(self, msg: str) -> None:
        super().__init__(msg)


def _rebuild(
    kind: type[PyverbsRDMAError], text: str, error_code: int, reason: str
) -> PyverbsRDMAError:
    """Make a copy, as `copy` and multiprocessing do."""
    error = kind(text)
    error._error_code = error_code
    error._reason = reason
    return error
