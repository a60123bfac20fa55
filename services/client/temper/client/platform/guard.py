"""Run as a file: `python -S -E guard.py PARENT_PID PROGRAM ARGS…` becomes PROGRAM, and dies with its parent.

The kernel sends SIGKILL when the parent ends, however it ends (PR_SET_PDEATHSIG survives exec). A separate program,
because code between fork and exec of a process with threads may deadlock. It imports nothing of temper.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1  # from <sys/prctl.h>


def main() -> None:
    """Bind our life to the parent's, then become the program."""
    parent, *command = sys.argv[1:]
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != int(parent):  # it died before the line above
        sys.exit(1)
    os.execv(command[0], command)  # noqa: S606 - the command line is our own


if __name__ == "__main__":
    main()
