"""Which modules may use what not every operating system has.

The client runs on Windows; client, command and services run on macOS. No test runs there, so these
look at the source.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from support.repository.tree import ROOT

UNIX_MODULES = {"fcntl", "grp", "pty", "pwd", "readline", "resource", "syslog", "termios", "tty"}
UNIX_NAMES = {
    "os": {
        "O_CLOEXEC", "O_DIRECTORY", "O_NONBLOCK", "fork", "getpgid", "getuid", "killpg", "pread",
        "pwrite", "register_at_fork", "setsid", "statvfs", "sysconf", "uname", "wait", "writev",
    },
    "signal": {"SIGHUP", "SIGKILL", "SIGUSR1", "SIGUSR2"},
    "socket": {"AF_UNIX", "SO_REUSEPORT"},
}  # fmt: skip
LINUX_NAMES = {
    "os": {
        "copy_file_range", "eventfd", "eventfd_write", "fdatasync", "memfd_create", "pidfd_open",
        "pipe2", "posix_fadvise", "posix_fallocate", "sched_getaffinity", "sched_setaffinity",
        "sendfile", "splice",
    },
    "select": {"EPOLLIN", "EPOLLONESHOT", "EPOLLOUT", "epoll"},
    "selectors": {"EpollSelector"},
    "socket": {"SOCK_CLOEXEC", "SOCK_NONBLOCK", "SO_PEERCRED", "TCP_USER_TIMEOUT"},
    "signal": {"sigtimedwait", "sigwaitinfo"},
}  # fmt: skip
# They ask for the system, or for the function, first.
ASKS_BEFORE = {
    "clients/python/src/aerobee_client/runtime/fork.py",
    "proto/src/aerobee_wire/files.py",
}


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


def modules(*folders: str) -> Iterator[Path]:
    for folder in folders:
        yield from sorted((ROOT / folder / "src").rglob("*.py"))


def imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""


def named(path: Path, names: dict[str, set[str]]) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if node.attr in names.get(node.value.id, ()):
                yield f"{relative(path)}:{node.lineno}: {node.value.id}.{node.attr}"
        elif isinstance(node, ast.ImportFrom) and node.module in names:
            for alias in node.names:
                if alias.name in names[node.module]:
                    yield f"{relative(path)}:{node.lineno}: {node.module}.{alias.name}"


def test_the_client_imports_no_module_of_unix() -> None:
    client = modules("proto", "clients/cluster", "clients/python")
    assert [
        f"{relative(path)}: {name}"
        for path in client
        for name in imported(path)
        if name in UNIX_MODULES and relative(path) not in ASKS_BEFORE
    ] == []


def test_the_client_calls_nothing_that_windows_lacks() -> None:
    client = modules("proto", "clients/cluster", "clients/python")
    assert [
        found
        for path in client
        for found in named(path, UNIX_NAMES)
        if relative(path) not in ASKS_BEFORE
    ] == []


def test_client_command_and_services_call_nothing_that_macos_lacks() -> None:
    services = [relative(each) for each in sorted((ROOT / "services").iterdir())]
    everything = modules("proto", *services, "clients/cluster", "clients/python", "clients/cli")
    assert [
        found
        for path in everything
        for found in named(path, LINUX_NAMES)
        if relative(path) not in ASKS_BEFORE
    ] == []
