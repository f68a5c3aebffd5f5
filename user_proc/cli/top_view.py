"""A sample of `softhca top` as lines of plain text."""

import textwrap
from collections.abc import Iterator, Mapping
from typing import Any, Final

from user_proc.cli.columns import Column, lines_of, text_of

_KIB: Final = 1024
_WIDTH: Final = 100
_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB")
_SECONDS: Final = "/s"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 or value == int(value) else f"{value:.1f}"


def _size(value: float) -> str:
    for unit in _UNITS[:-1]:
        if abs(value) < _KIB:
            return f"{value:.0f} {unit}" if unit == _UNITS[0] else f"{value:.1f} {unit}"
        value /= _KIB
    return f"{value:.1f} {_UNITS[-1]}"


def _percent(value: float) -> str:
    return f"{value:.1f} %"


_MOVED: Final = (
    Column("sent_messages_per_s", "SENT/S", _number),
    Column("sent_bytes_per_s", "SENT BYTES/S", _size),
    Column("received_messages_per_s", "RECEIVED/S", _number),
    Column("received_bytes_per_s", "RECEIVED BYTES/S", _size),
    Column("retries_per_s", "RETRIES/S", _number),
    Column("rnr_naks_sent_per_s", "RNR SENT/S", _number),
)
_SESSIONS: Final = (
    Column("session", "SESSION"),
    Column("pid", "PID"),
    Column("process", "PROCESS"),
    Column("state", "STATE"),
    Column("cpu_percent", "CPU", _percent),
    Column("rss_bytes", "RSS", _size),
    Column("requests_per_s", "REQUESTS/S", _number),
    Column("in_flight", "IN FLIGHT"),
    Column("objects", "OBJECTS"),
    Column("locked_pages", "PAGES"),
    Column("arena_bytes", "ARENAS", _size),
)
_PORTS: Final = (Column("port", "PORT"), Column("state", "STATE"), *_MOVED)
_QUEUE_PAIRS: Final = (
    Column("number", "QP", hex),
    Column("session", "SESSION"),
    Column("state", "STATE"),
    *_MOVED,
)


def lines_of_sample(sample: Mapping[str, Any], rows: int, width: int = _WIDTH) -> Iterator[str]:
    """Give the lines of a sample; of each table `rows` rows at most.

    What stands above the tables is broken at the width.
    """
    for line in _head(sample):
        yield from textwrap.wrap(line, width, subsequent_indent="  ")
    tables = (
        ("sessions", _SESSIONS, "no sessions"),
        ("ports", _PORTS, "no ports"),
        ("qps", _QUEUE_PAIRS, "no queue pair moved anything"),
    )
    for key, columns, nothing in tables:
        found = sample[key]
        yield ""
        yield from lines_of(columns, found[:rows]) if found else (nothing,)
        if len(found) > rows:
            yield f"and {len(found) - rows} more"


def _head(sample: Mapping[str, Any]) -> Iterator[str]:
    kernel, hca, queues = sample["kernel"], sample["hca"], sample["queues"]
    yield (
        f"kernel {sample['name']} (pid {kernel['pid']}): {_process(kernel)}; "
        f"over {sample['seconds']:.1f} s, asked in {sample['asked_ms']:.1f} ms"
    )
    yield text_of(f"HCA {hca['state']}{_hca(hca)}")
    rates = {key: value for key, value in sample["rates"].items() if value is not None}
    yield ", ".join(
        f"{key.replace('_', ' ')} {_number(value)}{_SECONDS}" for key, value in rates.items()
    )
    yield _requests(sample["request_us"])
    holders = ", ".join(f"{holder}: {count}" for holder, count in queues["irps_by_holder"].items())
    yield text_of(
        f"queues: {queues['irps']} IRPs{f' ({holders})' if holders else ''}, "
        f"{queues['dpcs']} DPCs, {queues['threads_ready']} threads ready, "
        f"{queues['commands']} commands"
    )
    objects = ", ".join(f"{count} {kind}" for kind, count in sorted(sample["objects"].items()))
    yield f"objects: {objects or 'none'}"


def _process(usage: Mapping[str, Any]) -> str:
    cpu, memory = usage.get("cpu_percent"), usage.get("rss_bytes")
    if memory is None:
        return "gone"
    return f"{'-' if cpu is None else _percent(cpu)} CPU, {_size(memory)}"


def _hca(hca: Mapping[str, Any]) -> str:
    if hca["pid"] is None:
        return ""
    words = f" (pid {hca['pid']}): {_process(hca)}"
    if hca["busy_percent"] is None:
        return words
    shares = (
        f"{name} {_percent(hca[f'{name}_percent'])}" for name in ("busy", "looking", "asleep")
    )
    return f"{words}; {', '.join(shares)}"


def _requests(times: Mapping[str, Any]) -> str:
    if not times["timed"]:
        return "requests in the kernel: none was timed"
    return (
        f"requests in the kernel: p50 {times['p50']:,} us, p90 {times['p90']:,} us, "
        f"p99 {times['p99']:,} us, longest {times['longest']:,} us ({times['timed']} timed)"
    )
