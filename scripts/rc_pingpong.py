#!/usr/bin/env -S bash -c 'exec "$(dirname -- "$(readlink -f -- "$0")")/_python" "$0" "$@"'
"""Two sides send messages there and back over RC, as ibv_rc_pingpong; -h lists the options."""

import signal
import sys

signal.signal(signal.SIGINT, signal.SIG_DFL)  # until there is something to clean up

from user_proc.perftest.pingpong_main import main  # noqa: E402

if __name__ == "__main__":
    sys.exit(main("rc_pingpong"))
