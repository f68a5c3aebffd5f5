"""This process and another one, both in one XRC domain."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.end_to_end.test_engine_traffic import Peer
from tests.end_to_end.xrc_end import XrcEnd

XrcPair = tuple[XrcEnd, Peer]


@contextmanager
def xrc_pair(kernel: str, folder: Path) -> Iterator[XrcPair]:
    """Have both ends of a domain whose file lies in a folder."""
    file = folder / "domain"
    file.touch()
    end, peer = XrcEnd(kernel), Peer(kernel, module="xrc_end")
    try:
        end.open_domain(str(file))
        peer.ask("open_domain", str(file))
        yield end, peer
    finally:
        end.context.close()
        peer.end()
