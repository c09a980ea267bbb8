"""Resolve the host names of name servers, which may stand for several of them.

Name servers share no data, so each process needs the address of each one. A name with several DNS
records, such as that of a headless Service in Kubernetes, is one name server for each record. A
name with one record stays a name: each connection resolves it, and messages show it. Records are
read again every PERIOD_S, so that name servers may be added, removed or moved while processes run.

This module does not call name servers.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any, overload

PERIOD_S = 10.0
RETRY_S = 2.0  # while a name has never been resolved
# A call waits for this long at most. A name server whose DNS does not answer stays as it was.
TIMEOUT_S = 2.0

# Return the IP addresses of a host. Raises OSError.
Resolve = Callable[[str], Awaitable[Sequence[str]]]


async def resolve_host(host: str) -> Sequence[str]:
    """Return the IPv4 addresses of a host, or its IPv6 addresses if it has no others.

    Both kinds together would count a name server twice. Raises OSError.
    """
    found = await asyncio.to_thread(socket.getaddrinfo, host, None, type=socket.SOCK_STREAM)
    families = {family for family, *_ in found}
    chosen = socket.AF_INET if socket.AF_INET in families else socket.AF_INET6
    return sorted({str(place[0]) for family, *_, place in found if family == chosen})


class NameServers(Sequence[str]):
    """The present addresses of name servers, each "host:port".

    Args:
        given: The addresses that the user gave.
        resolve: Resolves host names. If it is None, the addresses stay as they are.
        now_s: A clock that never goes back, in seconds.
    """

    def __init__(
        self,
        given: Sequence[str],
        resolve: Resolve | None = None,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._given = tuple(given)
        self._resolve = resolve
        self._hosts = {} if resolve is None else {each: _host_of(each) for each in given}
        self._hosts = {address: host for address, host in self._hosts.items() if host}
        self._records: dict[str, tuple[str, ...]] = {}  # given address → its IP addresses
        self._now_s = now_s
        self._due_s = 0.0
        self._refreshing = asyncio.Lock()
        # Calls that have not ended, by given address. A call of DNS occupies a thread until it
        # ends, also after its timeout.
        self._resolving: dict[str, asyncio.Task[Sequence[str]]] = {}
        self._places: Mapping[str, str] = dict.fromkeys(given, "")

    @property
    def due_in_s(self) -> float | None:
        """Return the seconds until the next `refresh` has an effect; None if none ever has."""
        return max(0.0, self._due_s - self._now_s()) if self._hosts else None

    @property
    def places(self) -> Mapping[str, str]:
        """Return the IP address behind each address, or "" if it is unknown or never changes."""
        return self._places

    @overload
    def __getitem__(self, index: int) -> str: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[str]: ...

    def __getitem__(self, index: int | slice) -> str | Sequence[str]:
        return tuple(self._places)[index]

    def __len__(self) -> int:
        return len(self._places)

    async def refresh(self) -> None:
        """Resolve the host names again, but not more often than every PERIOD_S.

        A name that cannot be resolved keeps its last addresses.
        """
        if self.due_in_s != 0:
            return
        async with self._refreshing:
            if self.due_in_s != 0:  # another call has resolved them
                return
            began_s = self._now_s()
            await asyncio.gather(*(self._read(each) for each in self._hosts))
            known = self._hosts.keys() <= self._records.keys()
            self._due_s = began_s + (PERIOD_S if known else RETRY_S)
            self._places = dict(self._found())

    async def _read(self, address: str) -> None:
        call = self._resolving.get(address)
        if call is None:
            call = asyncio.create_task(self._call(self._hosts[address]))
            call.add_done_callback(lambda done: done.cancelled() or done.exception())
            self._resolving[address] = call
        try:
            await asyncio.wait([call], timeout=TIMEOUT_S)
        except asyncio.CancelledError:
            del self._resolving[address]  # or the next refresh would raise its CancelledError
            call.cancel()
            raise
        if not call.done():
            return
        del self._resolving[address]
        with contextlib.suppress(OSError):
            if records := call.result():
                self._records[address] = tuple(sorted(set(records)))

    async def _call(self, host: str) -> Sequence[str]:
        assert self._resolve is not None, "there are host names only with a resolver"
        return await self._resolve(host)

    def _found(self) -> list[tuple[str, str]]:
        found = []
        for address in self._given:
            records = self._records.get(address, ("",))
            if len(records) == 1:
                found.append((address, records[0]))
            else:
                port = address.rpartition(":")[2]
                found += [(_joined(record, port), record) for record in records]
        return found


async def hold_each(
    namesrvs: Sequence[str],
    hold: Callable[[str], Coroutine[Any, Any, None]],
    drop: Callable[[str], Awaitable[None]],
) -> None:
    """Run `hold` for each name server, until all have ended or this call is cancelled.

    If the addresses are NameServers, start it for those that appear, and cancel it for those that
    disappear. If the IP address behind a name changes, call `drop`, which closes the connection to
    the name, and start it again. Raises an exception of `hold`.
    """
    held: dict[str, tuple[str, asyncio.Task[None]]] = {}
    try:
        while True:
            places = await places_of(namesrvs)
            for address in [each for each in held if places.get(each) != held[each][0]]:
                await _cancel([held.pop(address)[1]])
                await drop(address)
            for address in [each for each in places if each not in held]:
                task = asyncio.create_task(hold(address), name=f"{hold.__qualname__} {address}")
                held[address] = places[address], task
            running = [task for _, task in held.values() if not task.done()]
            if running:
                wait_s = due_in_s(namesrvs)
                await asyncio.wait(running, timeout=wait_s, return_when=asyncio.FIRST_COMPLETED)
            for _, task in held.values():
                if task.done():
                    task.result()
            if all(task.done() for _, task in held.values()):
                return
    finally:
        await _cancel([task for _, task in held.values()])


async def places_of(namesrvs: Sequence[str]) -> Mapping[str, str]:
    """Return the present addresses, each with the IP address behind it if that can change."""
    if not isinstance(namesrvs, NameServers):
        return dict.fromkeys(namesrvs, "")
    await namesrvs.refresh()
    return namesrvs.places


def due_in_s(namesrvs: Sequence[str]) -> float | None:
    """Return the seconds until the addresses may be other ones; None if they never change."""
    return namesrvs.due_in_s if isinstance(namesrvs, NameServers) else None


async def _cancel(tasks: Sequence[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks)


def _host_of(address: str) -> str:
    """Return the host of "host:port", or "" if it is an IP address."""
    host = address.rpartition(":")[0].strip("[]")
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return host
    return ""


def _joined(host: str, port: str) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
