"""Run a service process: start, report ready, wait for a signal, stop, return the exit code.

SIGTERM and SIGINT stop it. SIGUSR1 makes it move its clients to other processes before it is
stopped (`drain`).

Exit codes: 0 stopped on request; 1 could not start, or found later that it must not run; 2 bad
command line or options.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import signal
import sys
from collections.abc import Callable, Mapping

import structlog

from aerobee_chassis.background import pause, until_one_ends
from aerobee_chassis.errors import StartError
from aerobee_chassis.lifecycle import App
from aerobee_chassis.open_files import allow_many_files
from aerobee_chassis.rpc.http2.loop import ServiceLoop

# By default, a busy thread keeps the GIL for 5 ms, and delays every RPC. With 0.5 ms, the cost is
# not measurable.
SWITCH_INTERVAL_S = 0.0005
# Calls in progress create hundreds of objects. With the default threshold (700), collecting young
# objects takes 4 % of a proxy's time. A far higher threshold would be bad: a failed call may keep a
# large request in memory until it is collected.
YOUNG_OBJECTS = 3_000
# By default, glibc returns memory to the kernel as soon as a request or a part of the log is freed.
# The next one then takes a page fault for every 4 KiB: more than half the processor time of
# receiving 512 KiB, a fifth of 128 KiB. With these settings, blocks up to the first size are not
# mapped separately. Each arena (one for the main thread, a few for others) keeps free memory up to
# the second size.
LARGEST_POOLED_BYTES = 16 << 20
KEPT_FREE_BYTES = 32 << 20
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # from malloc.h
# glibc does not return free memory between used blocks. After a burst of large messages, or after
# thousands of clients have left, most memory of the process is free. It is returned when the memory
# in use has fallen by this much since an earlier check.
RETURNED_BYTES = 16 << 20
LOOK_S = 10.0


def run(
    make_app: Callable[[], App],
    *,
    loop_factory: Callable[[], asyncio.AbstractEventLoop] = ServiceLoop,
    on_ready: Callable[[Mapping[str, object]], None] | None = None,
) -> int:
    """Run an app until SIGTERM or SIGINT, and return the exit code.

    `make_app` runs inside the event loop. A StartError is printed as one line on stderr. Any other
    exception during the start is a bug and keeps its traceback. `on_ready` receives the fields of
    the log line `ready`; that line is then not logged. `loop_factory` may create a loop
    with a simulated time.
    """
    try:
        with asyncio.Runner(loop_factory=loop_factory) as runner:
            runner.run(_live(make_app, on_ready))
    except StartError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


async def _live(
    make_app: Callable[[], App], on_ready: Callable[[Mapping[str, object]], None] | None
) -> None:
    _keep_freed_memory()
    allow_many_files()  # 1,024 by default: too few for the connections of a port
    loop = asyncio.get_running_loop()
    stopping = asyncio.Event()
    draining = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    loop.add_signal_handler(signal.SIGUSR1, draining.set)
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    log = structlog.get_logger()
    app = make_app()
    try:
        await app.start()
        # Objects of the start live as long as the process: leave them out of collections.
        gc.collect()
        gc.freeze()
        gc.set_threshold(YOUNG_OBJECTS, *gc.get_threshold()[1:])
        if on_ready is not None:
            on_ready(app.ready_fields)
        else:
            log.info("ready", **app.ready_fields)
        sys.stdout.flush()
        returning = asyncio.create_task(_return_memory(), name="returned memory")
        try:
            await until_one_ends(_until_set(stopping), app.until_failed(), _drain(app, draining))
        finally:
            returning.cancel()
        log.info("stopping")
    finally:
        await app.stop()
    log.info("stopped")
    sys.stdout.flush()


async def _until_set(event: asyncio.Event) -> None:
    await event.wait()


async def _drain(app: App, draining: asyncio.Event) -> None:
    """Drain the app when `draining` is set. Does not return: it waits for the stop after that."""
    await draining.wait()
    structlog.get_logger().info("draining")
    await app.drain()
    structlog.get_logger().info("drained")
    await asyncio.get_running_loop().create_future()


def _keep_freed_memory() -> None:
    """Configure glibc to keep freed memory in this process. Do nothing with another C library."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, LARGEST_POOLED_BYTES)
        mallopt(_M_TRIM_THRESHOLD, KEPT_FREE_BYTES)


async def _return_memory() -> None:
    """Return free memory to the kernel periodically.

    Only glibc 2.33 and later reports how much memory is in use.
    """
    libc = ctypes.CDLL(None)
    trim, info = getattr(libc, "malloc_trim", None), getattr(libc, "mallinfo2", None)
    if trim is None or info is None:
        return
    info.restype = _MallocInfo
    most = 0  # bytes in use since memory was last returned
    while True:
        await pause(LOOK_S)
        in_use = info().uordblks
        most = max(most, in_use)
        if most - in_use >= RETURNED_BYTES:
            await asyncio.to_thread(trim, 0)
            most = in_use


class _MallocInfo(ctypes.Structure):
    """The C structure `mallinfo2` of malloc.h."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            "arena",
            "ordblks",
            "smblks",
            "hblks",
            "hblkhd",
            "usmblks",
            "fsmblks",
            "uordblks",  # bytes in use
            "fordblks",
            "keepcost",
        )
    ]
