"""Users that no honest program is like. Their words:

KERNEL verbs SEED       every kind of verb, again and again, until it is killed
KERNEL spray SEED SECONDS   the same, while it writes what it likes over all it shares with the HCA;
                            longer, if it has made too little until then
"""

import ctypes
import math
import os
import random
import sys
import time
from typing import Any, Final, NamedTuple

from shared import doorbell_layout as layout
from shared import verb_codes as codes
from shared.live_words import words64
from shared.message_codec import decode, encode
from shared.verb_messages import (
    CqCreated,
    CreateAh,
    CreateCq,
    CreateQp,
    CreateSrq,
    ModifyQp,
    Multicast,
    Object,
    OpenXrcd,
    PortQuery,
    QpCreated,
    RegMr,
    ResizeCq,
    SrqCreated,
)
from shared.verb_reasons import VerbReason
from shared.verbs_enums import ibv_qp_attr_mask as attr
from user_proc.process import UserProcess

RC, UC, UD = 2, 3, 4
ARENA: Final = 4 << 20
ENOUGH: Final = 10
PATIENCE_SECONDS: Final = 15.0
U64: Final = (1 << 64) - 1
KINDS: Final = {"send_slot": 1, "receive_slot": 2, "slot": 3, "arm_slot": 4}
DESTROY: Final = {
    CqCreated: codes.IOCTL_DESTROY_CQ,
    QpCreated: codes.IOCTL_DESTROY_QP,
    SrqCreated: codes.IOCTL_DESTROY_SRQ,
}


class DeviceFatal(Exception):
    """A verb says that the HCA is dead."""


class Refusal(NamedTuple):
    """How a verb was refused."""

    errno: int
    reason: int
    object: int
    detail: int


class RawVerbs:
    """A session that sends verbs as bytes."""

    def __init__(self, name: str) -> None:
        self.process = UserProcess.connect(name)
        self.doorbells = self.process.open_doorbells()
        self.device = self.process.open_device(codes.HCA_DEVICE)

    def raw(self, code: int, data: bytes | None, length: int = codes.VERB_OUTPUT_LENGTH) -> bytes:
        output = bytearray(length)
        return bytes(output[: self.device.device_io_control(code, data, output)])

    def ask(self, code: int, message: Any = None) -> Any:
        """Give the reply, or a Refusal."""
        output = self.raw(code, encode(message) if message is not None else None)
        refusal = Refusal(*codes.VERB_RESULT.unpack_from(output))
        if refusal.reason == VerbReason.DEVICE_FATAL:
            raise DeviceFatal(refusal.errno)
        if refusal.errno:
            return refusal
        body = output[codes.VERB_RESULT.size :]
        return decode(body) if body else None

    def close(self) -> None:
        self.doorbells.close()
        self.process.close()


class Hostile(RawVerbs):
    """Makes, uses and destroys whatever there is, as its seed decides."""

    def __init__(self, name: str, seed: int) -> None:
        super().__init__(name)
        self.dice = random.Random(seed)
        self.arena = self.process.allocate(ARENA)
        self.pd = self.ask(codes.IOCTL_ALLOC_PD).handle
        self.queues: list[Any] = []
        self.made = 0

    def place(self) -> int:
        return self.arena.address + self.dice.randrange(ARENA // 4096 - 20) * 4096

    def handle(self, kind: type[Any]) -> int:
        """Some queue of that kind, or one that never was."""
        some = [queue.handle for queue in self.queues if isinstance(queue, kind)]
        return self.dice.choice(some) if some else 0

    def keep(self, reply: Any) -> None:
        if not isinstance(reply, Refusal):
            self.queues.append(reply)
            self.made += 1

    def create_cq(self) -> None:
        cqe = self.dice.choice((1, 15, 200))
        self.keep(self.ask(codes.IOCTL_CREATE_CQ, CreateCq(cqe, 0, 1, 0, self.place(), 65536)))

    def create_srq(self) -> None:
        message = CreateSrq(self.pd, 0, 16, 2, 0, 0, self.place(), 65536)
        self.keep(self.ask(codes.IOCTL_CREATE_SRQ, message))

    def create_qp(self) -> None:
        kind, cq = self.dice.choice((RC, UC, UD)), self.handle(CqCreated)
        srq = self.handle(SrqCreated) if not self.dice.randrange(4) else 0
        message = CreateQp(
            kind, self.pd, cq, cq, srq, 0, 16, 0 if srq else 16, 2, 0 if srq else 2, 0, 1, 0, 0,
            self.place(), 65536,
        )  # fmt: skip
        reply = self.ask(codes.IOCTL_CREATE_QP, message)
        self.keep(reply)
        if not isinstance(reply, Refusal):
            self.ready(reply, kind)

    def ready(self, qp: QpCreated, kind: int) -> None:
        """Bring a queue pair to RTS, connected with itself."""
        step = attr.IBV_QP_STATE
        first = step | attr.IBV_QP_PKEY_INDEX | attr.IBV_QP_PORT
        if kind == UD:
            self.modify(qp, first | attr.IBV_QP_QKEY, qp_state=1, port_num=1, qkey=5)
            self.modify(qp, step, qp_state=2)
            self.modify(qp, step | attr.IBV_QP_SQ_PSN, qp_state=3)
            return
        second = step | attr.IBV_QP_AV | attr.IBV_QP_PATH_MTU | attr.IBV_QP_DEST_QPN
        third = step | attr.IBV_QP_SQ_PSN
        if kind == RC:
            second |= attr.IBV_QP_MAX_DEST_RD_ATOMIC | attr.IBV_QP_MIN_RNR_TIMER
            third |= attr.IBV_QP_TIMEOUT | attr.IBV_QP_RETRY_CNT | attr.IBV_QP_RNR_RETRY
            third |= attr.IBV_QP_MAX_QP_RD_ATOMIC
        self.modify(qp, first | attr.IBV_QP_ACCESS_FLAGS, qp_state=1, port_num=1, qp_access_flags=7)
        self.modify(
            qp, second | attr.IBV_QP_RQ_PSN, qp_state=2, path_mtu=3, dest_qp_num=qp.qpn, ah_dlid=1,
            ah_port_num=1, max_dest_rd_atomic=1, min_rnr_timer=1,
        )  # fmt: skip
        self.modify(qp, third, qp_state=3, timeout=10, retry_cnt=1, rnr_retry=1, max_rd_atomic=1)

    def modify(self, qp: QpCreated, mask: int, **values: int) -> Any:
        nothing: dict[str, Any] = {
            name: bytes(16) if name.endswith("dgid") else 0 for name in ModifyQp._fields
        }
        message = ModifyQp(**nothing | values | {"handle": qp.handle, "mask": int(mask)})
        return self.ask(codes.IOCTL_MODIFY_QP, message)

    def register(self) -> None:
        place = self.arena.address + self.dice.randrange(ARENA)
        self.ask(codes.IOCTL_REG_MR, RegMr(self.pd, place, self.dice.randrange(1, 1 << 16), 0, 7))

    def destroy(self) -> None:
        if self.queues:
            queue = self.dice.choice(self.queues)
            if not isinstance(self.ask(DESTROY[type(queue)], Object(queue.handle)), Refusal):
                self.queues.remove(queue)

    def others(self) -> None:
        self.ask(codes.IOCTL_RESIZE_CQ, ResizeCq(self.handle(CqCreated), 31, self.place(), 65536))
        gid = b"\xff" + self.dice.randbytes(15)
        self.ask(codes.IOCTL_ATTACH_MCAST, Multicast(self.handle(QpCreated), gid, 0xC001))
        self.ask(codes.IOCTL_CREATE_AH, CreateAh(self.pd, 1, 1, 0, 0, 0, 0, bytes(16), 0, 0, 0, 0))
        self.ask(codes.IOCTL_OPEN_XRCD, OpenXrcd(0xFFFF_FFFF, os.O_CREAT))
        self.ask(codes.IOCTL_QUERY_QP, Object(self.handle(QpCreated)))
        self.ask(codes.IOCTL_QUERY_PORT, PortQuery(1))

    def step(self) -> None:
        """Do one thing."""
        makers = (self.create_cq, self.create_qp, self.create_qp, self.create_srq)
        self.dice.choice((*makers, self.register, self.destroy, self.others))()


class Sprayer(Hostile):
    """Writes over doorbells, rings, queues and completion queues between its verbs."""

    def __init__(self, name: str, seed: int) -> None:
        super().__init__(name, seed)
        self.words = words64(self.doorbells.segment)
        self.memory = (ctypes.c_char * ARENA).from_address(self.arena.address)

    def spray(self) -> None:
        for _ in range(30):
            self.dice.choice((self.ring, self.ring, self.jump, self.scribble, self.entry))()
        os.eventfd_write(self.doorbells.poke_fd, self.dice.choice((1, 1 << 20)))

    def ring(self) -> None:
        """Ring for a queue with an index word that may be anything."""
        if not self.queues:
            return
        queue = self.dice.choice(self.queues)
        name = self.dice.choice([name for name in KINDS if hasattr(queue, name)])
        slot = getattr(queue, name)
        at = layout.FIRST_SLOT_WORD + slot
        index = (self.words[at] + self.dice.choice((1, 1, 64, 1 << 20))) & U64
        self.words[at] = self.dice.choice((index, index, self.dice.getrandbits(64), 0, U64))
        rung = self.words[layout.RUNG_WORD]
        place = layout.RING_WORD + rung % layout.RING_ENTRIES
        self.words[place] = KINDS[name] << layout.KIND_SHIFT | slot
        self.words[layout.RUNG_WORD] = (rung + 1) & U64

    def jump(self) -> None:
        """Say that something was rung very often, or backwards."""
        rung = self.words[layout.RUNG_WORD]
        more = self.dice.choice((1, 4095, 4096, 4097, 1 << 32, 1 << 63, U64))
        self.words[layout.RUNG_WORD] = (rung + more) & U64

    def scribble(self) -> None:
        at = self.dice.randrange(layout.SEGMENT_LENGTH // 8 - 8)
        for word in range(at, at + 8):
            self.words[word] = self.dice.choice((0, U64, self.dice.getrandbits(64)))

    def entry(self) -> None:
        """Write over queues: noise, nothing, or what could be an entry."""
        at = self.dice.randrange(ARENA // 64 - 64) * 64
        noise = self.dice.randbytes(4096)
        small = b"".join(bytes([self.dice.randrange(16), 0, 0, 0]) for _ in range(1024))
        ctypes.memmove(ctypes.addressof(self.memory) + at, self.dice.choice((noise, small)), 4096)


def main() -> None:
    name, what, seed = sys.argv[1], sys.argv[2], int(sys.argv[3])
    user = Sprayer(name, seed) if what == "spray" else Hostile(name, seed)
    print("up", flush=True)
    end = time.monotonic() + float(sys.argv[4]) if what == "spray" else math.inf
    try:
        while (late := time.monotonic() - end) < 0 or (
            user.made <= ENOUGH and late < PATIENCE_SECONDS
        ):
            user.step()
            if isinstance(user, Sprayer):
                user.spray()
    except Exception as error:
        print(f"{type(error).__name__}: {error}", flush=True)
    print(f"made {user.made}", flush=True)
    os._exit(0)  # without a word to anybody
