"""The ping-pongs of libibverbs' examples: messages there and back, the time of all of them.

Rules: main thread.
Spec: rdma-core, libibverbs/examples (rc_pingpong.c, ud_pingpong.c, srq_pingpong.c).
"""

import argparse
import sys
from collections.abc import Sequence
from typing import Final

from shared.clock import now_ns
from user_proc.perftest.address import Address
from user_proc.perftest.completion_loops import Completions
from user_proc.perftest.data_check import CLIENT, SERVER, find_fault, prepare
from user_proc.perftest.ending_signals import exit_code_of
from user_proc.perftest.endpoint import Endpoint, EndpointPlan
from user_proc.perftest.meeting import agree_on_data, connect_endpoints, join, serve
from user_proc.perftest.option_parser import EMULATOR, OptionParser, number
from user_proc.perftest.option_table import DEVICE, MTUS, mtu
from user_proc.perftest.peer_link import DEFAULT_PORT, PeerLink
from user_proc.perftest.tool_errors import WrongOptions
from user_proc.perftest.tool_kinds import LARGEST_MESSAGE

_BATCH: Final = 64
_SEND_DEPTH: Final = 64
_SIZES: Final = {"rc_pingpong": 4096, "ud_pingpong": 1024, "srq_pingpong": 4096}


def main(name: str, arguments: Sequence[str] | None = None) -> int:
    """Run a ping-pong by its name; return the exit code."""
    given = sys.argv[1:] if arguments is None else arguments
    return exit_code_of(name, lambda: _run(name, _parse(name, given)))


def _parse(name: str, arguments: Sequence[str]) -> argparse.Namespace:
    parser = OptionParser(name, f"As ibv_{name} of libibverbs.")
    add = parser.add_argument
    parser.set_defaults(qps=1)
    size = _SIZES[name]
    add("-p", "--port", type=number(1, 65535), default=DEFAULT_PORT, help="TCP port of the meeting")
    add("-d", "--ib-dev", dest="device", default=DEVICE, help=f"device ({DEVICE})")
    add("-i", "--ib-port", dest="ib_port", type=number(1, 255), default=1, help="its port (1)")
    add("-s", "--size", type=number(1, LARGEST_MESSAGE), default=size, help=f"bytes ({size})")
    add("-r", "--rx-depth", type=number(1, 16384), default=500, help="receives ready (500)")
    add("-n", "--iters", type=number(1, 10**9), default=1000, help="messages each way (1000)")
    add("-l", "--sl", type=number(0, 15), default=0, help="service level")
    add("-e", "--events", action="store_true", help="sleep until a completion comes")
    add("-g", "--gid-idx", type=number(0, 127), default=None, help="send with a GRH")
    add("-c", "--chk", action="store_true", help="accepted; the data are always checked")
    if name == "ud_pingpong":
        parser.set_defaults(mtu=None)
    else:
        add("-m", "--mtu", type=mtu, default=1024, help="256 to 4096 (1024)")
    if name == "srq_pingpong":
        add("-q", "--num-qp", dest="qps", type=number(1, 1024), default=16, help="queue pairs (16)")
    parser.refuse(("-o", "--odp", "-P", "--prefetch"), "memory is always resident")
    parser.refuse(
        ("-t", "--ts", "-j", "--dm", "-N", "--new_send"), "the plain calls and an arena are used"
    )
    given = parser.parse_args(arguments)
    if given.qps > min(given.rx_depth, given.iters):
        raise WrongOptions("-q: each queue pair needs a receive (-r) and a message (-n)")
    if name == "ud_pingpong" and given.size > max(MTUS):
        raise WrongOptions(f"-s: a datagram has at most {max(MTUS)} bytes, one packet")
    return given


def _run(name: str, given: argparse.Namespace) -> None:
    is_server = given.host is None
    told = {"tool": name, "-s": given.size, "-n": given.iters, "-q": given.qps, "-m": given.mtu}

    def work(link: PeerLink, kernel: str, is_own: bool) -> None:
        owner = " (started by this server)" if is_own else ""
        print(f"  kernel {kernel}{owner}. {EMULATOR}")
        with Endpoint(kernel, _plan(name, given)) as endpoint:
            _show("local", endpoint.address)
            _show("remote", connect_endpoints(endpoint, link))
            endpoint.fill_receives()
            side, other = (SERVER, CLIENT) if is_server else (CLIENT, SERVER)
            prepare(endpoint, side, given.size)
            link.meet(ready=True)
            taken = _play(endpoint, link, given, first=not is_server)
            link.meet(done=True)
            agree_on_data(link, find_fault(endpoint, other, given.size))
            _tell(given, taken)

    if is_server:
        serve(given.name, given.port, told, lambda: print("  waiting", flush=True), work)
    else:
        join(given.name, given.host, given.port, told, work)


def _plan(name: str, given: argparse.Namespace) -> EndpointPlan:
    return EndpointPlan(
        device=given.device,
        port=given.ib_port,
        connection="UD" if name == "ud_pingpong" else "RC",
        qps=given.qps,
        largest=given.size,
        send_depth=_SEND_DEPTH,
        receive_depth=given.rx_depth,
        use_srq=name == "srq_pingpong",
        inline=0,
        events=given.events,
        mtu=given.mtu,
        gid_index=given.gid_idx,
        timeout=14,
        retries=7,
        service_level=given.sl,
        outstanding=1,
    )


def _play(endpoint: Endpoint, link: PeerLink, given: argparse.Namespace, first: bool) -> int:
    """Send and answer until every message has been there and back; give the nanoseconds."""
    arrivals = Completions(endpoint.receive_cq, endpoint.send_cq, link, endpoint.receive_channel)
    sends = Completions(endpoint.send_cq, endpoint.receive_cq, link, endpoint.send_channel)
    requests = [endpoint.request(index, "SEND", given.size) for index in range(given.qps)]
    sent = received = done = 0
    begin = now_ns()
    if first:
        for qp, request in zip(endpoint.qps, requests, strict=True):
            qp.post_send(request)
        sent = given.qps
    while received < given.iters:
        for one in arrivals.wait(_BATCH):
            received += 1
            index = endpoint.index_of[one.qp_num]
            endpoint.post_receive(index)
            if sent < given.iters:
                endpoint.qps[index].post_send(requests[index])
                sent += 1
        done += len(sends.poll(_BATCH))
    while done < sent:
        done += len(sends.wait(_BATCH))
    return now_ns() - begin


def _show(side: str, address: Address) -> None:
    colon = f"{side} address:"
    for qpn, psn in address.qps:
        print(
            f"  {colon:<16}LID {address.lid:#06x}, QPN {qpn:#08x}, PSN {psn:#08x}, "
            f"GID {address.gid or '::'}"
        )


def _tell(given: argparse.Namespace, nanoseconds: int) -> None:
    total, seconds = given.size * given.iters * 2, nanoseconds / 1e9
    print(f"{total} bytes in {seconds:.2f} seconds = {total * 8 / 1e6 / seconds:.2f} Mbit/sec")
    print(
        f"{given.iters} iters in {seconds:.2f} seconds = "
        f"{seconds * 1e6 / given.iters:.2f} usec/iter",
        flush=True,
    )
