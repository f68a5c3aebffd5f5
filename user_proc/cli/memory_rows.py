"""The table of memory: each place where memory or room for it is counted, and its limit.

Rules: imports nothing of the kernel: the state is data of another program.
"""

from collections.abc import Iterator
from typing import Any

State = dict[str, Any]
Row = dict[str, Any]


def memory_rows(state: State) -> list[Row]:
    """Return a row for each account, the kernel's first, then the HCA's, then the sessions'."""
    return [*_kernel(state), *_hca(state["hca"]), *_sessions(state)]


def _row(memory: str, used: int, limit: int | None, unit: str = "bytes") -> Row:
    return {"memory": memory, "used": used, "limit": limit, "unit": unit}


def _kernel(state: State) -> Iterator[Row]:
    arenas, places = state["arena_total"], state["arena_places"]
    pool = state["io_manager"]["pool"]
    yield _row("arenas of all sessions", arenas["used"], arenas["limit"])
    yield _row("arena descriptors", places["used"], places["limit"], "arenas")
    yield _row("pool of drivers", pool["used"], pool["limit"])


def _hca(host: State) -> Iterator[Row]:
    if not host:
        return
    memory, frames = host["kernel_memory"], host["bus"]["frames"]
    yield _row("kernel memory of the HCA", memory["used"], memory["limit"])
    yield _row("kernel memory held", memory["held"], memory["limit"])
    yield _row("page frames", frames["used"], frames["total"], "pages")
    yield from _driver(host.get("driver", {}).get("hca", {}))
    for segment in host["bus"]["segments"]:
        name = f"bus segment {segment['number']} ({segment['name']})"
        yield _row(name, segment["length"], None)


def _driver(hca: State) -> Iterator[Row]:
    if not hca:
        return
    regions, mtt, keys = hca["regions"], hca["regions"]["mtt_segments"], hca["numbers"]["mpt"]
    yield _row("registered regions", regions["bytes"], None)
    yield _row("memory keys", keys["used"], keys["size"], "keys")
    yield _row("MTT", mtt["used"], mtt["size"], "segments")
    yield from _buffers(hca["buffers"], hca["allocations"])
    for name, chunks in hca["icm"]["tables"].items():
        yield _row(f"ICM of table {name}", len(chunks), None, "chunks")


def _buffers(live: State, past: State) -> Iterator[Row]:
    way = live["strategy"]
    yield _row("queue buffers in the kernel", live["bytes"], None)
    yield _row(f"queue buffers, got {way}", live["pieces"], None, "pieces")
    yield _row("queue buffers, lost to rounding", live["lost_to_rounding"], None)
    yield _row("queue buffers, deepest fallback", past["deepest_fallback"], None, "halvings")
    yield _row("queue buffers, in smaller pieces than asked", past["fallbacks"], None, "buffers")
    yield _row("queue buffers, refused", past["refused"], None, "buffers")


def _sessions(state: State) -> Iterator[Row]:
    for session in state["server"]["sessions"]:
        owner = f"session {session['session']}"
        quota = session["arenas"]["quota"]
        yield _row(f"{owner}: arenas", quota["used"], quota["limit"])
        yield _row(f"{owner}: pool", session["pool_charged"], session["pool_quota"])
        yield _row(f"{owner}: locked pages", session["locked_pages"], None, "pages")
