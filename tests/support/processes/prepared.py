"""Start services and commands by a fork of a Python that has imported their modules.

A service then starts in a tenth of the processor time. The suite starts more than a thousand.
Benchmarks do not use it.

The child runs `python -m MODULE ARGUMENT…`, with these differences: modules that the services and
the command import are imported already, also those that this one would not import; it has an
`aerobee_*` command line of the parent in /proc; its parent process is the Python that forks; it
does not clear its modules when it ends, because that would copy most of the parent's memory. A
child whose environment differs in variables that Python or the libraries read when they start
(`OF_THE_INTERPRETER`) is not forked: the caller executes it.

The parent sends a request over a socket, with the descriptors of the child, and gets the pid. This
module is also the program of the Python that forks.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from io import FileIO
from typing import IO

SERVICES = (
    "aerobee_namesrv.app",
    "aerobee_broker.app",
    "aerobee_proxy.app",
    "aerobee_chassis.process",
    "aerobee_suite.options",
)
CLIENTS = ("aerobee_client.producer", "aerobee_client.push_consumer", "aerobee_client.admin.client")
COMMANDS = "aerobee_cli.commands"  # all modules of it
# Prefixes of variables that are read once per process.
OF_THE_INTERPRETER = ("LD_", "PYTHON", "GRPC_", "MALLOC_", "GLIBC_", "TZ", "LANG", "LC_")
REQUEST_BYTES = 1 << 18
GONE = "the Python that forks has ended"
_EXIT_CODE = struct.Struct("=i")


class ForkedProcess:
    """A process that was forked. It has the methods of `subprocess.Popen` that the tests need."""

    def __init__(self, pid: int, args: Sequence[str], exit_code: int, out: int, err: int) -> None:
        self.pid = pid
        self.args = list(args)
        self.stdout: IO[bytes] = FileIO(out)
        self.stderr: IO[bytes] = FileIO(err)
        self.returncode: int | None = None
        self._exit_code: IO[bytes] = FileIO(exit_code)
        self._waiting = threading.Lock()  # only one thread may read and close

    def wait(self, timeout: float | None = None) -> int:
        if not self._waiting.acquire(timeout=-1 if timeout is None else timeout):
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        try:
            if self.returncode is None:
                poll = select.poll()
                poll.register(self._exit_code, select.POLLIN)
                if not poll.poll(None if timeout is None else timeout * 1_000):
                    raise subprocess.TimeoutExpired(self.args, timeout or 0)
                data = self._exit_code.read(_EXIT_CODE.size)
                assert data, GONE
                self._exit_code.close()
                [self.returncode] = _EXIT_CODE.unpack(data)
            return self.returncode
        finally:
            self._waiting.release()

    def poll(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.wait(0)
        return None

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # it has ended in this moment
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class _Server:
    """The Python that forks, seen from its parent."""

    def __init__(self) -> None:
        self._environment = _interpreter(_kept(os.environ))
        self._lock = threading.Lock()
        self._socket, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with other:
            self._process = subprocess.Popen(
                [sys.executable, "-P", __file__, str(other.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=[other.fileno()],
                env=_kept(os.environ),
            )
        atexit.register(self._end)

    def _end(self) -> None:
        self._socket.close()
        self._process.wait()

    def suits(self, env: Mapping[str, str]) -> bool:
        """Return whether a child with this environment may be forked."""
        return _interpreter(_kept(env)) == self._environment

    def fork(
        self, module: str, arguments: Sequence[str], env: Mapping[str, str], stdin: int
    ) -> ForkedProcess:
        request = {"module": module, "arguments": list(arguments), "env": dict(env)}
        data = json.dumps({**request, "folder": os.getcwd()}).encode()  # noqa: PTH109
        out, err, code = os.pipe(), os.pipe(), os.pipe()
        ours, theirs = (code[0], out[0], err[0]), (out[1], err[1], code[1])
        try:
            with self._lock:
                socket.send_fds(self._socket, [data], [stdin, *theirs])
                answer = self._socket.recv(64)
            if not answer:
                raise RuntimeError(GONE)
        except BaseException:
            for descriptor in ours:
                os.close(descriptor)
            raise
        finally:
            for descriptor in theirs:
                os.close(descriptor)
        return ForkedProcess(int(answer), [module, *arguments], *ours)


def _kept(env: Mapping[str, str]) -> dict[str, str]:
    return {**env, "PYTHONUNBUFFERED": "1"}


def _interpreter(env: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in env.items() if key.startswith(OF_THE_INTERPRETER)}


_server: _Server | None = None
_is_enabled = False


def enable() -> None:
    """Let `fork` of this process fork. Before, it returns None."""
    global _is_enabled  # noqa: PLW0603
    _is_enabled = True


def fork(
    module: str, arguments: Sequence[str], env: Mapping[str, str], stdin: int | None = None
) -> ForkedProcess | None:
    """Start `python -m MODULE ARGUMENT…` by a fork.

    Return None if the caller must execute it. `stdin` is a file descriptor.
    """
    global _server  # noqa: PLW0603
    if not _is_enabled:
        return None
    if _server is None:
        _server = _Server()
    if not _server.suits(env):
        return None
    if stdin is not None:
        return _server.fork(module, arguments, env, stdin)
    with open(os.devnull, "rb") as nothing:  # noqa: PTH123
        return _server.fork(module, arguments, env, nothing.fileno())


# ---- the program ----


def _serve(control: socket.socket) -> dict[str, object] | None:
    """Fork for each request. Return the request in each child, and None when the parent ends."""
    codes: dict[int, int] = {}  # pid → where its exit code goes
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for pytest, which ends this
    while True:
        ready, _, _ = select.select([control.fileno(), reader], [], [])
        if reader in ready:
            with contextlib.suppress(BlockingIOError):
                os.read(reader, 4_096)
            _reap(codes)
        if control.fileno() not in ready:
            continue
        data, descriptors, _, _ = socket.recv_fds(control, REQUEST_BYTES, 4)
        if not data:
            return None
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            for number, descriptor in enumerate(descriptors[:3]):
                os.dup2(descriptor, number)
            os.closerange(3, 1_024)
            request: dict[str, object] = json.loads(data)
            return request
        *inherited, code = descriptors
        for descriptor in inherited:
            os.close(descriptor)
        codes[pid] = code
        control.send(str(pid).encode())


def _reap(codes: dict[int, int]) -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        code = codes.pop(pid)
        with contextlib.suppress(BrokenPipeError):
            os.write(code, _EXIT_CODE.pack(os.waitstatus_to_exitcode(status)))
        os.close(code)


class _ShortEnd:
    """Ends a child as the last function of `atexit`: Python would clear all modules after it."""

    def __init__(self) -> None:
        self._code: int | None = None  # unknown: an exception ends the child, or it is the parent
        atexit.register(self._end)  # the first one that is registered is the last one called

    def exits_with(self, code: object) -> None:
        if code is None or isinstance(code, int):
            self._code = (code or 0) & 0xFF
        else:
            self._code = 1  # Python prints any other object

    def _end(self) -> None:
        if self._code is None:
            return
        gc.collect()  # as Python does: objects may warn when they are deleted
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(self._code)


def _main() -> None:
    import importlib
    import pkgutil
    import runpy

    end = _ShortEnd()
    commands = importlib.import_module(COMMANDS)
    found = pkgutil.iter_modules(commands.__path__, f"{COMMANDS}.")
    for name in (*SERVICES, *CLIENTS, *(module.name for module in found)):
        importlib.import_module(name)
    # A service builds the schema of its options when it first uses them.
    below = list(importlib.import_module("aerobee_chassis.config").Options.__subclasses__())
    for options in below:  # grows
        below += options.__subclasses__()
        options.model_rebuild()
        options.keys()
    gc.collect()
    gc.freeze()
    control = socket.socket(fileno=int(sys.argv[1]))
    request = _serve(control)
    if request is None:
        return
    control.detach()
    module, arguments = str(request["module"]), request["arguments"]
    os.environ.clear()
    os.environ.update(request["env"])  # type: ignore[call-overload]
    os.chdir(str(request["folder"]))
    sys.path.insert(0, str(request["folder"]))
    sys.argv = [module, *arguments]  # type: ignore[misc]
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as error:
        end.exits_with(error.code)
        raise
    end.exits_with(0)


if __name__ == "__main__":
    _main()
