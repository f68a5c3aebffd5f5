#!/usr/bin/env -S bash -c 'exec "$(dirname -- "$(readlink -f -- "$0")")/_python" "$0" "$@"'
"""Send latency, RC or UD: half the round trip of two sides in turn; -h lists the options."""

import signal
import sys

signal.signal(signal.SIGINT, signal.SIG_DFL)  # until there is something to clean up

from user_proc.perftest.tool_main import main  # noqa: E402

if __name__ == "__main__":
    sys.exit(main("ib_send_lat"))
