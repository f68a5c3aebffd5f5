"""An HCA on the bench: one segment of kernel memory, one session, everything stepped by hand."""

import mmap

from kernel_proc.hca.hca_device import HcaDevice
from kernel_proc.hca_abi import command_opcodes as op
from kernel_proc.hca_abi import contexts as abi
from kernel_proc.hca_abi import event_entries as eqe
from kernel_proc.hca_abi import qp_transitions as table
from kernel_proc.hca_abi import registers as reg
from kernel_proc.hca_abi.device_settings import HcaSettings
from shared import doorbell_layout as bells
from shared.cqe_layout import CQE, CQE_SIZE, CQE_VALID_OFFSET, Cqe

KERNEL_SEGMENT = 1
KERNEL_MEMORY = 16 << 20
PAGE = 4096
UAR = 3
PD = 9
RIGHTS = (
    abi.MPT_FLAG_REGION
    | abi.MPT_FLAG_LOCAL_READ
    | abi.MPT_FLAG_LOCAL_WRITE
    | abi.MPT_FLAG_REMOTE_READ
    | abi.MPT_FLAG_REMOTE_WRITE
)
TRANSPORTS = {
    abi.QPC_TRANSPORT_RC: table.RC,
    abi.QPC_TRANSPORT_UC: table.UC,
    abi.QPC_TRANSPORT_UD: table.UD,
    abi.QPC_TRANSPORT_XRC_SEND: table.XRC_SEND,
    abi.QPC_TRANSPORT_XRC_RECV: table.XRC_RECV,
}

_TABLES = (
    ("qpc_base", abi.QPC_SIZE, "log_qps"),
    ("eqpc_base", abi.EQPC_SIZE, "log_qps"),
    ("rdb_base", abi.RDB_SIZE, "log_qps"),
    ("cqc_base", abi.CQC_SIZE, "log_cqs"),
    ("srqc_base", abi.SRQC_SIZE, "log_srqs"),
    ("eqc_base", abi.EQC_SIZE, "log_eqs"),
    ("mpt_base", abi.MPT_SIZE, "log_mpts"),
    ("mtt_base", abi.MTT_SEGMENT_SIZE, "log_mtt_segments"),
    ("mgm_base", abi.MGM_ENTRY_SIZE, "log_mgms"),
)
_LOGS = {
    "log_qps": 12,
    "log_cqs": 9,
    "log_srqs": 8,
    "log_eqs": 5,
    "log_mpts": 10,
    "log_mtt_segments": 10,
    "log_mgms": 5,
}


def _layout() -> tuple[abi.InitHca, int]:
    values: dict[str, int] = dict(_LOGS)
    end = 0
    for name, size, log in _TABLES:
        values[name] = end
        end += -(-(size << _LOGS[log]) // PAGE) * PAGE
    return abi.InitHca(**values, uar_pages=64), end


LAYOUT, ICM_SIZE = _layout()


class Bench:
    """One device; commands are polled unless `event` is asked for."""

    def __init__(self, settings: HcaSettings | None = None) -> None:
        self.now = 1_000_000
        self.interrupts = 0
        self.registers = memoryview(bytearray(reg.REGISTER_PAGE_SIZE))
        self.status_page = memoryview(bytearray(bells.STATUS_PAGE_LENGTH))
        self.words = self.registers.cast("Q")
        self.status = self.status_page.cast("Q")
        self.memory = memoryview(mmap.mmap(-1, KERNEL_MEMORY))  # pages cost when touched
        self.doorbells = memoryview(bytearray(bells.SEGMENT_LENGTH))
        self.slots = self.doorbells.cast("Q")
        self.device = HcaDevice(
            self.registers,
            self.status_page,
            settings or HcaSettings(),
            lambda: self.now,
            self._interrupt,
        )
        self.tables = self.device.tables
        self.device.add_segment(KERNEL_SEGMENT, self.memory)
        self.device.add_doorbells(UAR, self.doorbells)
        self._next_page = 0
        self._next_index = 16
        self._next_mtt = 128
        self._next_slot = 0
        self.inbox = self.pages(1)
        self.outbox = self.pages(1)
        self.out_param = 0
        self.eqs: dict[int, tuple[int, int, int]] = {}

    def _interrupt(self) -> None:
        self.interrupts += 1

    # Memory

    def pages(self, count: int) -> int:
        """Return the bus address of fresh zeroed pages."""
        offset = self._next_page * PAGE
        self._next_page += count
        return KERNEL_SEGMENT << reg.SEGMENT_SHIFT | offset

    def at(self, bus: int, length: int) -> memoryview:
        offset = bus & reg.SEGMENT_OFFSET_MASK
        return self.memory[offset : offset + length]

    def slot(self) -> int:
        self._next_slot += 1
        return self._next_slot

    # Commands

    def post(
        self,
        opcode: int,
        *,
        modifier: int = 0,
        opmod: int = 0,
        inbox: bytes | None = None,
        in_param: int = 0,
        out_param: int | None = None,
        event: bool = False,
        token: int = reg.POLLING_TOKEN,
    ) -> None:
        if inbox is not None:
            self.at(self.inbox, PAGE)[:] = inbox.ljust(PAGE, b"\0")
            in_param = self.inbox
        out = self.outbox if out_param is None else out_param
        reg.HCR_PARAMETERS.pack_into(
            self.registers,
            reg.HCR_OFFSET,
            in_param,
            modifier,
            out,
            token << reg.HCR_TOKEN_SHIFT,
        )
        control = opcode | opmod << reg.HCR_OPMOD_SHIFT | reg.HCR_GO_BIT
        control |= reg.HCR_E_BIT if event else 0
        reg.HCR_CONTROL.pack_into(self.registers, reg.HCR_CONTROL_OFFSET, control)

    def post_to_ring(self, opcode: int, *, modifier: int = 0, token: int = 0) -> None:
        """Post a command through the command doorbell."""
        posted = self.words[reg.COMMANDS_POSTED_OFFSET // 8]
        place = posted % reg.COMMAND_RING_ENTRIES * reg.COMMAND_RING_STRIDE
        control = reg.HCR_GO_BIT | reg.HCR_E_BIT | opcode
        reg.COMMAND_RING_ENTRY.pack_into(
            self.registers,
            reg.COMMAND_RING_OFFSET + place,
            0,
            modifier,
            self.outbox,
            token << reg.HCR_TOKEN_SHIFT,
            control,
        )
        self.words[reg.COMMANDS_POSTED_OFFSET // 8] = posted + 1

    @property
    def control(self) -> int:
        return int(reg.HCR_CONTROL.unpack_from(self.registers, reg.HCR_CONTROL_OFFSET)[0])

    def run(self, opcode: int, **arguments: object) -> int:
        """Run a polled command at once and return its status."""
        self.post(opcode, **arguments)  # type: ignore[arg-type]  # passed on as they came
        for _ in range(20):
            self.device.run_once()
            if not self.control & reg.HCR_GO_BIT:
                self.out_param = reg.HCR_OUT_PARAM.unpack_from(
                    self.registers, reg.HCR_OUT_PARAM_OFFSET
                )[0]
                return self.control >> reg.HCR_STATUS_SHIFT
            due = self.device.next_deadline_ns()
            if due is not None:
                self.now = max(self.now, due)
        raise AssertionError("the command does not end")

    def ok(self, opcode: int, **arguments: object) -> None:
        assert self.run(opcode, **arguments) == op.CMD_STAT_OK

    def out(self, length: int) -> bytes:
        return bytes(self.at(self.outbox, length))

    def settle(self) -> None:
        """Step until there is nothing to do."""
        for _ in range(100_000):
            if not self.device.run_once():
                return
        raise AssertionError("the device does not come to rest")

    # Bring-up

    def start_firmware(self) -> None:
        self.map_run(op.MAP_FA, 16)
        self.ok(op.RUN_FW)
        self.ok(op.SET_ICM_SIZE, in_param=ICM_SIZE)
        self.map_run(op.MAP_ICM_AUX, self.out_param)

    def map_run(self, opcode: int, count: int, virtual: int = 0) -> None:
        """Map `count` pages, all backed by the same memory: nothing looks into it."""
        log2 = max(0, (count - 1).bit_length())
        if not hasattr(self, "_backing"):
            self._backing = self.pages(64)
        entries = []
        while count > 0:
            log2 = min(6, count.bit_length() - 1)
            entries.append(abi.ICM_MAP_ENTRY.pack(virtual, self._backing | log2))
            virtual += PAGE << log2
            count -= 1 << log2
        for first in range(0, len(entries), 200):
            part = entries[first : first + 200]
            self.ok(opcode, modifier=len(part), inbox=b"".join(part))

    def bring_up(self) -> "Bench":
        """Do what the driver does: firmware, ICM, INIT_HCA, three EQs."""
        self.start_firmware()
        self.map_run(op.MAP_ICM, ICM_SIZE // PAGE)
        self.ok(op.INIT_HCA, inbox=abi.INIT_HCA_MAILBOX.pack(*LAYOUT))
        for number in (reg.COMPLETION_EQ, reg.ASYNC_EQ, reg.COMMAND_EQ):
            self.make_eq(number)
        command = 1 << eqe.EVENT_COMMAND_DONE
        self.ok(op.MAP_EQ, modifier=reg.ASYNC_EQ, in_param=0xFFFFFFFF & ~command & ~1)
        self.ok(op.MAP_EQ, modifier=reg.COMMAND_EQ, in_param=command)
        return self

    # Memory keys

    def mpt(
        self,
        bus_pages: list[int],
        length: int,
        *,
        start: int = 0,
        flags: int = RIGHTS,
        pd: int = PD,
        page_size: int = 0,
        index: int | None = None,
        generation: int = 0,
    ) -> int:
        """Register pages and return the key."""
        if index is None:
            self._next_index += 1
            index = self._next_index
        first = self._next_mtt
        self._next_mtt += -(-len(bus_pages) // 8) * 8
        for part in range(0, len(bus_pages), 510):
            entries = bus_pages[part : part + 510]
            body = abi.WRITE_MTT_HEADER.pack((first + part) * 8, 0)
            body += b"".join((page | abi.MTT_PRESENT).to_bytes(8, "big") for page in entries)
            self.ok(op.WRITE_MTT, modifier=len(entries), inbox=body)
        number = generation << _LOGS["log_mpts"] | index
        key = (number << 8 | number >> 24) & 0xFFFFFFFF
        entry = abi.MptEntry(
            flags, page_size, key, pd, start, length, mtt_address=first * 8, mtt_size=0
        )
        self.ok(op.SW2HW_MPT, modifier=index, inbox=abi.MPT_ENTRY.pack(*entry))
        return key

    def region(self, length: int, **arguments: object) -> tuple[int, int]:
        """Register fresh contiguous memory; return key and bus address."""
        count = -(-length // PAGE)
        bus = self.pages(count)
        pages = [bus + n * PAGE for n in range(count)]
        return self.mpt(pages, length, **arguments), bus  # type: ignore[arg-type]  # passed on

    # Event queues

    def make_eq(self, number: int, log_size: int = 5) -> None:
        key, bus = self.region(32 << log_size)
        view = self.at(bus, 32 << log_size)
        for index in range(1 << log_size):
            view[index * 32 + 31] = eqe.EQE_OWNED_BY_HCA
        context = abi.EqContext(0, 0, log_size << 24, 0, 0, PD, key)
        self.ok(op.SW2HW_EQ, modifier=number, inbox=abi.EQ_CONTEXT.pack(*context))
        self.eqs[number] = (bus, 1 << log_size, 0)

    def events(self, number: int, most: int = 1 << 20) -> list[bytes]:
        """Take entries as the driver does, and publish the consumer index."""
        bus, size, consumer = self.eqs[number]
        found = []
        while len(found) < most:
            entry = self.at(bus + consumer % size * 32, 32)
            if entry[31] & eqe.EQE_OWNED_BY_HCA:
                break
            found.append(bytes(entry))
            entry[31] = eqe.EQE_OWNED_BY_HCA
            consumer += 1
        self.eqs[number] = (bus, size, consumer)
        self.words[reg.EQ_CONSUMER_OFFSET // 8 + number] = consumer
        return found

    def async_events(self) -> list[tuple[int, int]]:
        """Return type and number of the asynchronous events."""
        self.settle()
        return [
            (entry[1], int.from_bytes(entry[4:8], "big")) for entry in self.events(reg.ASYNC_EQ)
        ]

    def completions(self) -> list[int]:
        """Return the CQ numbers of completion events."""
        self.settle()
        return [int.from_bytes(entry[4:8], "big") for entry in self.events(reg.COMPLETION_EQ)]

    # Queues

    def make_cq(self, cqn: int = 200, log_size: int = 4, flags: int = 0) -> "BenchCq":
        return BenchCq(self, cqn, log_size, flags)

    def make_qp(self, qpn: int = 2000, **arguments: object) -> "BenchQp":
        return BenchQp(self, qpn, **arguments)  # type: ignore[arg-type]  # passed on

    def ring(self, kind: int, slot: int, word: int | None = None) -> None:
        """Store an index word and ring."""
        if word is not None:
            self.slots[bells.FIRST_SLOT_WORD + slot] = word
        rung = self.slots[bells.RUNG_WORD]
        place = bells.RING_WORD + rung % bells.RING_ENTRIES
        self.slots[place] = kind << bells.KIND_SHIFT | slot
        self.slots[bells.RUNG_WORD] = (rung + 1) & ((1 << 64) - 1)


class BenchCq:
    """A CQ and its owner's view of it."""

    def __init__(self, bench: Bench, cqn: int, log_size: int, flags: int = 0) -> None:
        self.bench = bench
        self.cqn = cqn
        self.size = 1 << log_size
        self.key, self.bus = bench.region(CQE_SIZE << log_size)
        self.consumer_slot = bench.slot()
        self.arm_slot = bench.slot()
        self.consumer = 0
        self.sequence = 0
        self.context = self.make_context(log_size, flags)
        bench.ok(op.SW2HW_CQ, modifier=cqn, inbox=abi.CQ_CONTEXT.pack(*self.context))

    def make_context(self, log_size: int, flags: int = 0) -> abi.CqContext:
        return abi.CqContext(
            flags=flags,
            start=0,
            log_size_uar=log_size << 24 | UAR,
            error_eq=0,
            completion_eq=reg.COMPLETION_EQ,
            pd=PD,
            lkey=self.key,
            last_notified=0,
            solicit_producer=0,
            consumer=0,
            producer=0,
            cqn=self.cqn,
            consumer_slot=self.consumer_slot,
            arm_slot=self.arm_slot,
        )

    @property
    def queue(self):  # the device's own object
        found = self.bench.tables.cqs.find(self.cqn)
        assert found is not None
        return found

    def entry(self, position: int) -> Cqe | None:
        view = self.bench.at(self.bus + position % self.size * CQE_SIZE, CQE_SIZE)
        valid = int.from_bytes(view[CQE_VALID_OFFSET:], "little")
        return Cqe(*CQE.unpack_from(view)) if valid == position + 1 else None

    def poll(self, publish: bool = True) -> list[Cqe]:
        found = []
        while (entry := self.entry(self.consumer)) is not None:
            found.append(entry)
            self.consumer += 1
        if publish:
            self.publish()
        return found

    def publish(self) -> None:
        self.bench.slots[bells.FIRST_SLOT_WORD + self.consumer_slot] = self.consumer

    def arm(self, solicited: bool = False, consumer: int | None = None) -> None:
        self.ring_arm(solicited, consumer)
        self.bench.settle()

    def ring_arm(self, solicited: bool = False, consumer: int | None = None) -> None:
        self.sequence += 1
        word = self.sequence << bells.ARM_SEQUENCE_SHIFT
        word |= self.consumer if consumer is None else consumer
        word |= bells.ARM_SOLICITED if solicited else 0
        self.bench.ring(bells.RING_CQ_ARM, self.arm_slot, word)


class BenchQp:
    """A QP with two rings of its own."""

    def __init__(
        self,
        bench: Bench,
        qpn: int,
        *,
        transport: int = abi.QPC_TRANSPORT_RC,
        cq: BenchCq | None = None,
        receive_cq: BenchCq | None = None,
        entries: int = 16,
        srqn: int = 0,
        create: bool = True,
    ) -> None:
        self.bench = bench
        self.qpn = qpn
        kind = TRANSPORTS[transport]
        sends = entries if kind != table.XRC_RECV else 0
        receives = entries if kind in (table.RC, table.UC, table.UD) and not srqn else 0
        self.cq = cq or bench.make_cq(cqn=qpn & 0xFF | 0x100)
        self.receive_cq = receive_cq or self.cq
        self.key, self.bus = bench.region(max(1, receives * 64 + sends * 128))
        self.send_slot = bench.slot()
        self.receive_slot = bench.slot()
        self.context = abi.QpContext(
            transport=transport,
            flags=abi.QPC_HAS_SRQ if srqn else 0,
            local_qpn=qpn,
            pd=PD,
            uar=UAR,
            wqe_lkey=self.key,
            send_offset=receives * 64,
            send_entries=sends,
            send_stride=128 if sends else 0,
            receive_entries=receives,
            receive_stride=64 if receives else 0,
            send_slot=self.send_slot,
            receive_slot=self.receive_slot,
            send_cqn=self.cq.cqn,
            receive_cqn=self.receive_cq.cqn,
            srqn=srqn,
            remote_qpn=77,
            qkey=0x1234,
            mtu=4,
            access=6,
            port=1,
            pkey_index=0,
            ack_timeout=14,
            retry_count=7,
            rnr_retry=6,
            min_rnr_timer=12,
            sra_max=2,
            rra_max=4,
            next_send_psn=0x1000111,
            next_receive_psn=0x2000222,
            path_port=1,
            path_dlid=2,
        )
        self.posted = {bells.RING_SEND: 0, bells.RING_RECEIVE: 0}
        if create:
            bench.ok(op.RST2INIT_QPEE, modifier=qpn, inbox=self.mailbox())

    def mailbox(self, options: int = 0, **changes: object) -> bytes:
        context = self.context._replace(**changes)  # type: ignore[arg-type]  # passed on
        return abi.QP_MAILBOX_HEAD.pack(options) + abi.QP_CONTEXT.pack(*context)

    def run(self, opcode: int, options: int = 0, **changes: object) -> int:
        return self.bench.run(opcode, modifier=self.qpn, inbox=self.mailbox(options, **changes))

    def bring(self, state: int) -> None:
        """Bring a QP that is in INIT to a state."""
        steps = {
            table.INIT: (),
            table.RTR: (op.INIT2RTR_QPEE,),
            table.RTS: (op.INIT2RTR_QPEE, op.RTR2RTS_QPEE),
            table.SQD: (op.INIT2RTR_QPEE, op.RTR2RTS_QPEE, op.RTS2SQD_QPEE),
            table.SQE: (op.INIT2RTR_QPEE, op.RTR2RTS_QPEE),
            table.ERR: (op.TOERR_QPEE,),
            table.RESET: (op.ERR2RST_QPEE,),
        }
        for opcode in steps[state]:
            assert self.run(opcode) == op.CMD_STAT_OK
        if state == table.SQE:  # the device's own transition
            queue_pair = self.bench.tables.qps.find(self.qpn)
            assert queue_pair is not None
            self.bench.tables.qps.set_state(queue_pair, table.SQE)

    def post(self, kind: int, count: int, ring: bool = True) -> None:
        self.posted[kind] += count
        slot = self.send_slot if kind == bells.RING_SEND else self.receive_slot
        if ring:
            self.bench.ring(kind, slot, self.posted[kind])
        else:
            self.bench.slots[bells.FIRST_SLOT_WORD + slot] = self.posted[kind]

    def query(self) -> abi.QpContext | None:
        if self.bench.run(op.QUERY_QPEE, modifier=self.qpn) != op.CMD_STAT_OK:
            return None
        data = self.bench.out(abi.QP_MAILBOX_HEAD.size + abi.QP_CONTEXT.size)
        return abi.QpContext(*abi.QP_CONTEXT.unpack_from(data, abi.QP_MAILBOX_HEAD.size))

    @property
    def state(self) -> int:
        found = self.query()
        return found.state if found is not None else table.RESET
