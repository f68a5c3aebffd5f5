"""A user process that keeps the kernel busy with control verbs while others are measured.

Run as `python -P -m user_proc.bench.speed.load_worker NAME`; it does the control mix over and over
until a word in shared memory says that it is enough, or its other end is gone.
"""

import select
import sys
from collections.abc import Callable, Mapping
from typing import Any

from shared.clock import now_ns
from user_proc.bench.speed.shared_places import WORD_STOP, map_words
from user_proc.bench.verbs.verb_worker import VerbWorker
from user_proc.bench.worker_service import serve_worker


class LoadWorker(VerbWorker):
    """A user process of the verbs' benchmark without an end to its block."""

    def commands(self) -> Mapping[str, Callable[..., dict[str, Any]]]:
        """Return the commands by name."""
        return {**super().commands(), "saturate": self.saturate}

    def saturate(self, path: str) -> dict[str, Any]:
        """Do the program that was prepared until the page of words says stop; say how often."""
        assert self._verbs is not None
        run, steps, begin = self._verbs.run, self._steps, now_ns()
        words = map_words(path)
        passes = 0
        # Input that can be read is its end: no command comes before this one is answered.
        while not words[WORD_STOP] and not select.select([0], [], [], 0)[0]:
            run(steps)
            passes += 1
        return {"verbs": passes * len(steps), "elapsed_ns": now_ns() - begin}


def main(arguments: list[str]) -> int:
    """Serve at the kernel of that name."""
    return serve_worker(LoadWorker, arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
