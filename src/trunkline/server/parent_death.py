"""Ties a process to its parent, even if the parent is killed with SIGKILL."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def end_with(parent: int) -> None:
    """Have the kernel kill this process when its parent ends, so that it does not keep the port.

    Linux only. Elsewhere, children of a killed parent keep the port, and the next start reports that it is in use.
    """
    if not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before prctl
        sys.exit("the parent process has ended")
