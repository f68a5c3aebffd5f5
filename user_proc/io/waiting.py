"""Waits as every handle has them: a timeout in seconds, alertable or not.

An alertable wait that user APCs end runs their routines in this thread before it returns
STATUS_USER_APC. Whatever ends a wait, every completion the kernel sent before has then been taken
by this process, so that "the event is set" implies "the status block is written".

Rules: any thread.
Spec: WDK: NtWaitForSingleObject, Waits and APCs; shared/envelope.py.
"""

import math
from collections.abc import Sequence
from typing import Final

from shared.envelope import (
    FLAG_ALERTABLE,
    FLAG_INPUT_INLINE,
    FLAG_USER_APC,
    FLAG_WAIT_ALL,
    KIND_DELAY,
    KIND_WAIT,
    MAX_WAIT_OBJECTS,
    WAIT_FOREVER,
)
from shared.nt_status import STATUS_ALERTED, STATUS_SUCCESS, STATUS_USER_APC, nt_success
from user_proc.errors import NtStatusError
from user_proc.transport.kernel_channel import KernelChannel

_HANDLE_BYTES: Final = 4


def timeout_ns(timeout: float | None) -> int:
    """Turn seconds into what a message carries; None is a wait without limit, as infinity is."""
    if timeout is None or timeout == math.inf:
        return WAIT_FOREVER
    if timeout != timeout:
        raise ValueError("a timeout must be a number of seconds, not NaN")
    return min(max(0, round(timeout * 1e9)), WAIT_FOREVER - 1)


def wait_in_kernel(
    channel: KernelChannel,
    kind: int,
    handle: int = 0,
    timeout: float | None = None,
    *,
    alertable: bool = False,
    flags: int = 0,
    payload: bytes | None = None,
    output_length: int = 0,
    keep: object = None,
) -> tuple[int, bytes]:
    """Wait, and run what user APCs are due; give the wait's status and what came with it.

    Raises NtStatusError for an error, or a wait that was broken off.
    """
    port = channel.port()
    if alertable:
        if port.apcs.run_due():
            return STATUS_USER_APC, b""
        flags |= FLAG_ALERTABLE
    answer, body = port.call(
        kind,
        flags if payload is None else flags | FLAG_INPUT_INLINE,
        handle,
        input_length=0 if payload is None else len(payload),
        output_length=output_length,
        information=timeout_ns(timeout),
        payload=payload,
        keep=keep,
    )
    status = answer[6]
    if answer[2] & FLAG_USER_APC:
        port.apcs.deliver(body or b"")
        channel.catch_up(answer[7])
        port.apcs.run_due()
        return status, b""
    if not nt_success(status) or status == STATUS_ALERTED:
        raise NtStatusError(status)
    channel.catch_up(answer[7])
    return status, body or b""


def wait_for_handles(
    channel: KernelChannel,
    handles: Sequence[int],
    wait_all: bool,
    timeout: float | None,
    alertable: bool,
) -> int:
    """Wait for one of several handles, or all of them."""
    if not 1 <= len(handles) <= MAX_WAIT_OBJECTS:
        raise ValueError(f"one wait takes 1 to {MAX_WAIT_OBJECTS} objects, not {len(handles)}")
    payload = b"".join(handle.to_bytes(_HANDLE_BYTES, "little") for handle in handles)
    status, _ = wait_in_kernel(
        channel,
        KIND_WAIT,
        timeout=timeout,
        alertable=alertable,
        flags=FLAG_WAIT_ALL if wait_all else 0,
        payload=payload,
    )
    return status


def sleep_in_kernel(channel: KernelChannel, seconds: float | None, alertable: bool) -> bool:
    """Sleep; True if user APCs were run instead of sleeping on."""
    status, _ = wait_in_kernel(channel, KIND_DELAY, timeout=seconds, alertable=alertable)
    return status != STATUS_SUCCESS
