"""What each fault does, in words for help pages and the documentation."""

from typing import Final, NamedTuple


class FaultWords(NamedTuple):
    """What happens, and what a user of the kernel sees of it."""

    happens: str
    seen: str


FAULT_WORDS: Final[dict[str, FaultWords]] = {
    "command-fails": FaultWords(
        "an HCA command ends with a status and has changed nothing",
        "the verb is refused with the errno of that status and COMMAND_FAILED; what it had begun "
        "is undone",
    ),
    "command-late": FaultWords(
        "a command takes so much longer, and those behind it wait",
        "the verb returns later; after 60 s EBUSY, COMMAND_TIMEOUT",
    ),
    "completion-lost": FaultWords(
        "a command is carried out and nobody is told",
        "EBUSY, COMMAND_TIMEOUT after 60 s; what the command was about is not used again before "
        "that is known. In polling mode GO stays: EAGAIN until the HCA is reset",
    ),
    "interrupt-lost": FaultWords(
        "events are written and the line is not raised",
        "the event comes with the next interrupt, or when the driver looks by itself: 250 ms later "
        "while a verb waits, else within 5 s; none is lost",
    ),
    "interrupt-doubled": FaultWords(
        "the line is raised once more when there is nothing new", "nothing: each event comes once"
    ),
    "event-queue-full": FaultWords(
        "no event queue has room",
        "events and the ends of verbs come when it is over, each once",
    ),
    "port-down": FaultWords(
        "a port goes down, and comes up again",
        "IBV_EVENT_PORT_ERR, then IBV_EVENT_PORT_ACTIVE; meanwhile the port's state is DOWN, and "
        "RC requests end with RETRY_EXC_ERR if their retries do not last",
    ),
    "link-down": FaultWords(
        "nothing leaves a port, or any, and its state stays",
        "RC: success after retries, or RETRY_EXC_ERR; UC and UD: success at the sender, and "
        "nothing arrives",
    ),
    "request-lost": FaultWords(
        "a request does not arrive",
        "RC: success after a timeout and a retry; UC and UD: the message is lost",
    ),
    "request-doubled": FaultWords(
        "a request arrives twice",
        "RC: nothing, the message is there once; UC and UD: it may be there twice",
    ),
    "ack-lost": FaultWords(
        "a request of RC or XRC is carried out and its answer lost",
        "success after a timeout and a retry, carried out once; always: RETRY_EXC_ERR",
    ),
    "remote-key-corrupt": FaultWords(
        "the rkey of a write, read or atomic is another one",
        "REM_ACCESS_ERR at the sender, IBV_EVENT_QP_ACCESS_ERR at the receiver, both QPs in ERR",
    ),
    "local-key-corrupt": FaultWords(
        "the lkeys of a send entry are others", "LOC_PROT_ERR, the QP in ERR"
    ),
    "hca-slow": FaultWords(
        "the HCA does nothing for a time after each round", "everything comes later"
    ),
    "hca-paused": FaultWords(
        "the HCA does nothing", "everything comes when it is over; a verb after 60 s EBUSY"
    ),
    "hca-failed": FaultWords(
        "the HCA has a catastrophic error",
        "IBV_EVENT_DEVICE_FATAL; verbs, polling and waiting EIO, DEVICE_FATAL until the HCA is "
        "reset",
    ),
    "hca-killed": FaultWords(
        "the HCA's process is killed",
        "IBV_EVENT_DEVICE_FATAL; verbs, polling and waiting EIO, DEVICE_FATAL until the HCA is "
        "reset",
    ),
    "kernel-slow": FaultWords(
        "the kernel is busy with something else before each message", "every request takes longer"
    ),
    "kernel-paused": FaultWords(
        "the kernel does nothing", "requests end when it is over; traffic between QPs goes on"
    ),
    "hca-memory-fails": FaultWords(
        "there is no kernel memory that the HCA reaches",
        "ENOMEM, OUT_OF_MEMORY from verbs that need some; what they had begun is undone",
    ),
    "map-registers-used-up": FaultWords(
        "no DMA adapter has a map register left",
        "STATUS_INSUFFICIENT_RESOURCES, or no adapter, for a driver whose device does not reach "
        "all memory; verbs need none",
    ),
    "page-lock-fails": FaultWords(
        "a process may lock no more pages", "reg_mr: ENOMEM, TOO_MANY_LOCKED_PAGES; nothing locked"
    ),
    "pool-fails": FaultWords(
        "the pool quota of a process is used up",
        "STATUS_QUOTA_EXCEEDED from a device control; EDQUOT from a verb",
    ),
    "arena-fails": FaultWords(
        "the quota of shared memory of a process is used up",
        "STATUS_QUOTA_EXCEEDED from allocating a buffer; PyverbsError from objects that need one",
    ),
    "message-lost": FaultWords(
        "a message of a process does not arrive",
        "that call does not return until it is interrupted or the connection ends; other threads "
        "and processes go on",
    ),
    "message-cut": FaultWords(
        "half of a message's payload, or header, is missing",
        "payload: STATUS_INVALID_PARAMETER, EINVAL from a verb; header: as message-lost",
    ),
    "message-doubled": FaultWords(
        "a message arrives twice",
        "one answer; what was asked for is done twice, and its objects end with the process",
    ),
}
