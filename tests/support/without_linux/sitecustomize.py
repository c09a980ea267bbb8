"""Takes from Python on Linux what Python on macOS lacks.

Python imports this module at its start if PYTHONPATH has its folder. Processes that it starts in
turn do the same. What stays Linux's is what lies below Python: the kernel, and gRPC.
"""

from __future__ import annotations

import errno
import importlib
import os
import resource
import select
import selectors
import signal
import socket
import sys
import time

LACKING = {
    os: (
        "EFD_", "GRND_", "MFD_", "O_DIRECT", "O_PATH", "O_TMPFILE", "P_PIDFD", "SCHED_", "SPLICE_",
        "copy_file_range", "eventfd", "fdatasync", "getrandom", "getresuid", "getxattr",
        "memfd_create", "pidfd_open", "pipe2", "posix_fadvise", "posix_fallocate", "sched_",
        "setns", "splice", "unshare",
    ),
    select: ("EPOLL", "epoll"),
    socket: ("AF_NETLINK", "AF_VSOCK", "SOCK_CLOEXEC", "SOCK_NONBLOCK", "SO_PEERCRED",
             "TCP_USER_TIMEOUT"),
    signal: ("SIGRT", "sigtimedwait", "sigwaitinfo"),
    time: ("CLOCK_BOOTTIME", "CLOCK_TAI"),
    resource: ("prlimit",),
    errno: ("EUCLEAN",),
}  # fmt: skip

for module, beginnings in LACKING.items():
    for name in dir(module):
        if name.startswith(beginnings):
            delattr(module, name)
# Module `socket` has imported it, and it has looked for what there is.
del selectors.EpollSelector
importlib.reload(selectors)
if "asyncio" in sys.modules:
    raise ImportError("asyncio was imported before: it has the selector of Linux")
