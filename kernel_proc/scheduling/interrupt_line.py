"""A device's interrupt line as a word in shared memory.

The device adds 1 to the word; the dispatcher compares it with what it has seen, at each pass and
before it sleeps. Sleep is announced in a second word, fenced, and the first one looked at once
more, so that the device, which stores, fences and looks at the announcement, wakes a processor
that missed the store. A line that was raised twice between two looks interrupts once.

Rules: dispatcher only. The line word has one writer, the device; the announcement has one, this.
Spec: shared/live_words.py; WDK, Introduction to Interrupt Service Routines.
"""

from typing import TYPE_CHECKING

from shared.live_words import full_fence, words64

if TYPE_CHECKING:
    from kernel_proc.scheduling.interrupt import Interrupt
    from kernel_proc.scheduling.processor import Processor


class InterruptLine:
    """One line: `registers` holds its word at `line_offset`, the announcement at `sleeps_offset`.

    A line without an interrupt is masked; that it was raised is kept for the one connected next.
    `raises` counts the looks that found it raised.
    """

    __slots__ = ("_interrupt", "_line", "_missed", "_processor", "_sleeps", "raises")

    def __init__(
        self, processor: "Processor", registers: memoryview, line_offset: int, sleeps_offset: int
    ) -> None:
        self._processor = processor
        self._line = words64(registers[line_offset : line_offset + 8])
        self._sleeps = words64(registers[sleeps_offset : sleeps_offset + 8])
        self._interrupt: Interrupt | None = None
        self._missed = False
        self.raises = 0

    def attach(self) -> None:
        """Have the dispatcher look at this line; a processor has one."""
        dispatcher = self._processor.dispatcher
        dispatcher.line = self
        dispatcher.line_word = self._line
        dispatcher.line_seen = 0

    def detach(self) -> None:
        """Undo `attach`."""
        self._processor.dispatcher.forget_line()

    def reset(self) -> None:
        """The device begins anew and its word at 0; nothing it raised before interrupts."""
        self._processor.dispatcher.line_seen = 0
        self._missed = False

    def connect(self, interrupt: "Interrupt") -> None:
        """Have the line raise `interrupt`; at once if it was raised while nobody was connected."""
        self._interrupt = interrupt
        if self._missed:
            self._missed = False
            interrupt.request()

    def disconnect(self) -> None:
        """Mask the line."""
        self._interrupt = None

    def take(self) -> None:
        """Request the interrupt; called by the dispatcher when the word has moved."""
        dispatcher = self._processor.dispatcher
        # First seen, then serviced: what is raised from here on is seen at the next look.
        dispatcher.line_seen = self._line[0]
        self.raises += 1
        if self._interrupt is not None:
            self._interrupt.request()
        else:
            self._missed = True

    def is_raised(self) -> bool:
        """Tell whether there is something to take."""
        return bool(self._line[0] != self._processor.dispatcher.line_seen)

    def announce_sleep(self) -> bool:
        """Tell the device that the processor sleeps; True if the line was raised meanwhile."""
        self._sleeps[0] = 1
        full_fence()
        return self.is_raised()

    def awake(self) -> None:
        """Take the announcement back."""
        self._sleeps[0] = 0
