"""The floors of the data path: bare words through a third process, and copies between regions.

Rules: the relay and both users wait by the rule of `speed_waiting`; each live word has one writer.
"""

import ctypes
import os
from array import array
from collections.abc import Callable
from typing import Final

from shared.clock import now_ns
from user_proc.bench.speed.shared_places import (
    WORD_FROM_RELAY,
    WORD_FROM_RELAY_BACK,
    WORD_STOP,
    WORD_TO_RELAY,
    WORD_TO_RELAY_BACK,
)
from user_proc.bench.speed.speed_waiting import wait_for_word
from user_proc.bench.timed_loops import empty_samples

_LOOKS: Final = 1023


def relay(
    words: memoryview,
    first: int,
    spin: int,
    is_over: Callable[[], bool],
    *,
    there_and_back: bool,
) -> None:
    """Hand on each word that comes until told to stop: to the other user, or to the same one.

    `first` is the first one, before which nothing is handed on. `is_over`, asked now and then,
    tells that the benchmark has ended and nobody will say stop.
    """
    answer = WORD_FROM_RELAY_BACK if there_and_back else WORD_FROM_RELAY
    seen, seen_back = first - 1, words[WORD_TO_RELAY_BACK]
    looks = 0
    while not words[WORD_STOP] and (looks & _LOOKS != _LOOKS or not is_over()):
        value = words[WORD_TO_RELAY]
        if value != seen:
            words[answer] = seen = value
            looks = 0
            continue
        value = words[WORD_TO_RELAY_BACK]
        if value != seen_back:
            words[WORD_FROM_RELAY_BACK] = seen_back = value
            looks = 0
            continue
        looks += 1
        if looks > spin:
            os.sched_yield()


def ask_relay(words: memoryview, first: int, count: int, spin: int, *, ways: int) -> "array[int]":
    """Send a word and wait for it to come back, by the relay; a sample is the time of one way."""
    samples, now = empty_samples(count), now_ns
    for index in range(count):
        value = first + index
        begin = now()
        words[WORD_TO_RELAY] = value
        wait_for_word(words, WORD_FROM_RELAY_BACK, value, spin)
        samples[index] = (now() - begin) // ways
    return samples


def answer_relay(words: memoryview, first: int, count: int, spin: int) -> None:
    """Send back so many words that come by the relay."""
    for index in range(count):
        value = first + index
        wait_for_word(words, WORD_FROM_RELAY, value, spin)
        words[WORD_TO_RELAY_BACK] = value


def copies(source: int, target: int, length: int, count: int) -> "array[int]":
    """Copy so many times from one address to another; return the time of each."""
    samples, now, copy = empty_samples(count), now_ns, ctypes.memmove
    for index in range(count):
        begin = now()
        copy(target, source, length)
        samples[index] = now() - begin
    return samples
