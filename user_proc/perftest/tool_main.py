"""One run of a perftest tool, on either side: meet, connect, measure, check, report.

Rules: main thread.
"""

import sys
from collections.abc import Sequence

from user_proc.perftest.bandwidth_loops import CREDIT_BYTES
from user_proc.perftest.ending_signals import exit_code_of
from user_proc.perftest.endpoint import Endpoint, EndpointPlan
from user_proc.perftest.latency_loops import SEND_DEPTH
from user_proc.perftest.measurement import Measurement
from user_proc.perftest.meeting import connect_endpoints, join, serve
from user_proc.perftest.peer_link import PeerLink
from user_proc.perftest.tool_kinds import TOOLS
from user_proc.perftest.tool_options import Options, parse_options
from user_proc.perftest.tool_report import Report


def main(name: str, arguments: Sequence[str] | None = None) -> int:
    """Run a tool by its name; return the exit code."""
    given = sys.argv[1:] if arguments is None else arguments
    return exit_code_of(name, lambda: _run(parse_options(TOOLS[name], given)))


def _run(options: Options) -> None:
    report = Report(options)
    told = {"tool": options.tool.name, **options.symmetric()}

    def work(link: PeerLink, kernel: str, is_own: bool) -> None:
        with Endpoint(kernel, _plan(options)) as endpoint:
            report.frame(endpoint, kernel, is_own)
            report.addresses("local", endpoint.address, endpoint)
            report.addresses("remote", connect_endpoints(endpoint, link), endpoint)
            Measurement(options, endpoint, link, report).run()

    if options.host is None:
        serve(options.name, options.port, told, report.waiting, work)
    else:
        join(options.name, options.host, options.port, told, work)


def _plan(options: Options) -> EndpointPlan:
    """Say what a run needs."""
    tool = options.tool
    receives = options.rx_depth if options.takes_receives else 1
    return EndpointPlan(
        device=options.device,
        port=options.ib_port,
        connection=options.connection,
        qps=options.qps,
        largest=max(options.largest, CREDIT_BYTES),
        send_depth=SEND_DEPTH if tool.is_latency else options.tx_depth,
        receive_depth=receives,
        use_srq=options.use_srq,
        inline=options.inline,
        events=options.events,
        vector=options.vector,
        mtu=options.mtu,
        dlid=options.dlid,
        pkey_index=options.pkey_index,
        gid_index=options.gid_index,
        hop_limit=options.hop_limit,
        traffic_class=options.traffic_class,
        flow_label=options.flow_label,
        timeout=options.timeout,
        retries=options.retries,
        service_level=options.service_level,
        outstanding=options.outstanding,
    )
