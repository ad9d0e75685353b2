"""Run a command that ends when its starter does: ``python launch.py STARTER_PID COMMAND…``.

This file is run as a script, never imported: it must stay free of imports that cost time. Asking the kernel here, after
the fork, keeps the starter, which may have threads, from running Python between its fork and exec.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    starter = int(sys.argv[1])
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != starter:  # it died before the request was in place
        sys.exit(1)
    os.execv(sys.argv[2], sys.argv[2:])


if __name__ == "__main__":
    main()
