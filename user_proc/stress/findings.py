"""What a program of steps can find wrong, and why a step may have nothing to do."""

from typing import Any, Final

LOST: Final = "lost"  # a completion or an event that never comes
DOUBLED: Final = "doubled"  # a completion of a request that has come back already
CORRUPT: Final = "corrupt"  # bytes, length or immediate that are not those that were sent
WRONG: Final = "wrong"  # an errno or a status the model does not allow
HANG: Final = "hang"  # a call or a client that does not go on
DIED: Final = "died"  # a client, the kernel or the HCA that ended by itself

KINDS: Final = (LOST, DOUBLED, CORRUPT, WRONG, HANG, DIED)


class Finding(Exception):
    """The product did what the model says it cannot do: one of KINDS, and a sentence."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return {"kind": self.kind, "text": str(self)}


class NothingToDo(Exception):
    """A step does not apply: what it is about is not there, or not in the state it needs.

    So any part of a list of steps is a list of steps, too.
    """
