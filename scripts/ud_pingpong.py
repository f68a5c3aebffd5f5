#!/usr/bin/env -S bash -c 'exec "$(dirname -- "$(readlink -f -- "$0")")/_python" "$0" "$@"'
"""Two sides send datagrams there and back, as ibv_ud_pingpong; -h lists the options."""

import signal
import sys

signal.signal(signal.SIGINT, signal.SIG_DFL)  # until there is something to clean up

from user_proc.perftest.pingpong_main import main  # noqa: E402

if __name__ == "__main__":
    sys.exit(main("ud_pingpong"))
