"""Processes that must not outlive the one that started them, also when that one is killed with -9."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def end_with(parent: int) -> None:
    """Have the system kill this process when its parent has ended, so that nobody stays behind on the port.

    Linux only: elsewhere a killed parent leaves its children, and the next start says that the port is taken.
    """
    if not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before we asked
        sys.exit("the process that started this one has ended")
