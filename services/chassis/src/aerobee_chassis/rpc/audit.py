"""Write changes and rejected calls of a server to its audit log.

A change has two lines with the same request id: the first one is on the disk before the handler
runs, and the second one has the result. If the first one cannot be written, the change is refused.
Rejected calls, and calls that read bodies, are counted: a minute has at most two lines for a kind.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import structlog

from aerobee_chassis.background import BackgroundTask, PeriodicTask
from aerobee_chassis.clock import Clock
from aerobee_chassis.errors import StartError
from aerobee_chassis.lifecycle import Component
from aerobee_chassis.rpc.audit_log import AuditLog, AuditLogDamaged
from aerobee_chassis.rpc.audit_reader import AuditReader
from aerobee_chassis.rpc.call import Call
from aerobee_chassis.rpc.services import Service
from aerobee_wire.access.caller import Caller
from aerobee_wire.audit import CHANGE, CLOSED, LOGIN, OPENED, READ, REJECTED, RESULT
from aerobee_wire.audit_states import STATE_RPCS
from aerobee_wire.identity import Identity, identity_of
from aerobee_wire.permissions import READS, TABLE, resources_of, rpc_name
from aerobee_wire.status import Code, MqError

MINUTE_S = 60.0
# Callers, RPCs and resources with lines of their own in a minute. A line takes some 500 bytes: more
# of them would let a stranger fill ten files of 64 MiB within a day.
MOST_REJECTED, MOST_READ = 100, 1_000
MOST_RESOURCES = 16  # of one line
LONGEST_TEXT = 256  # characters of a name or a reason

_LOGINS = frozenset(path for path in TABLE if path.endswith("/LogIn"))
_CHANGES = _LOGINS | {path for path, row in TABLE.items() if row.is_change}


class ChangeNotAudited(MqError):
    """The audit log cannot record a change or a login, so the server refuses it."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(
            Code.SYSTEM_ERROR,
            f"changes and logins are refused, because the audit log cannot be written: {path}: "
            f"{reason}; free space on its disk, and retry",
            retryable=True,
            about="auditLogPath",
        )


@dataclass(frozen=True, slots=True)
class Who:
    """The caller of a call, as far as it is known.

    Attributes:
        user: The user who signed the call, or "".
        claimed: The user that the signature of a rejected call names, without a proof.
        certificate: The URI in the certificate of the caller, or "".
        address: The "host:port" of the caller.
    """

    user: str = ""
    claimed: str = ""
    certificate: str = ""
    address: str = ""

    @classmethod
    def of(cls, caller: Caller, call: Call, claimed: str = "") -> Who:
        """Return who makes a call, also on a port that checks no callers."""
        user = "" if caller.user is None else caller.user.name
        certificate = str(holder_of(call) or "")
        return cls(user, "" if user else claimed, certificate, caller.source or call.peer)

    @property
    def key(self) -> tuple[str, str]:
        """Return the fields by which callers differ. A stranger is known by its host."""
        known = self.user or self.certificate
        host = "" if known else self.address.rpartition(":")[0]
        return known or host, self.claimed

    @property
    def fields(self) -> dict[str, str]:
        """Return the fields of a line."""
        proof = "signature" if self.user else "certificate" if self.certificate else "none"
        fields = {"user": self.user[:LONGEST_TEXT], "proof": proof}
        if self.claimed:
            fields["claimed_user"] = self.claimed[:LONGEST_TEXT]
        return fields | {
            "certificate": self.certificate[:LONGEST_TEXT],
            "address": self.address[:LONGEST_TEXT],
        }


class States:
    """Find the state before and after a change by other RPCs of the same server."""

    def __init__(self, services: Iterable[Service]) -> None:
        self._methods = {
            f"/{service.name}/{method.name}": method
            for service in services
            for method in service.methods
        }

    async def of(self, path: str, request: Any, call: Call) -> Any:
        """Return the state as JSON, or None if it is unknown or if there is none."""
        found = STATE_RPCS.get(rpc_name(path))
        if found is None:
            return None
        method = self._methods.get(f"{path.rpartition('/')[0]}/{found.method}")
        if method is None:  # a slave serves only a part of its services
            return None
        try:
            answer = await method.handler(method.request(**found.values(request)), call)
        except MqError:  # it does not exist, or the request of the change is invalid
            return None
        return found.state(request, answer)


@dataclass(slots=True)
class Change:
    """A running change. `result` is that of its last line, until then CANCELLED."""

    result: str
    _is_over: bool = False

    def end(self, result: str) -> None:
        """Set the result, unless it is set. It is "OK" or the code of an error."""
        if not self._is_over:
            self.result, self._is_over = result, True


async def _no_state() -> None:
    return None


class Audit(Component):
    """Write the audit log of one server.

    - `cluster` is the cluster of this process.
    - `clock` gives the time of lines.
    - `with_reads`: whether calls that read bodies of messages have lines.
    - Tests replace `writer`, on which lines are written in their order.
    - `refused` is the number of changes and logins that were refused, and `lost` the number of
      other lines that could not be written.
    """

    def __init__(
        self,
        log: AuditLog,
        cluster: str,
        clock: Clock,
        *,
        with_reads: bool = False,
        writer: Executor | None = None,
    ) -> None:
        self._log = log
        self._cluster = cluster
        self._clock = clock
        self.with_reads = with_reads
        # One thread: lines keep their order, and a slow disk does not stop the event loop.
        self._writer = writer or ThreadPoolExecutor(1, "audit")
        self.reader = AuditReader(log.path, lambda: log.last, writer)
        self._rejected = _Counted(MOST_REJECTED)
        self._read = _Counted(MOST_READ)
        self._summary: BackgroundTask = PeriodicTask("audit", MINUTE_S, self._write_counted)
        self._opened = False
        self.refused = 0
        self.lost = 0

    async def start(self) -> None:
        """Open the log. Raises StartError if no line can be written."""
        path = str(self._log.path)
        try:
            await self._on_writer(self._log.open)
            await self._on_writer(self._append, {"event": OPENED}, True)
        except BlockingIOError:
            raise StartError(
                f"another process writes the audit log {path}: give each process its own "
                "auditLogPath",
                "auditLogPath",
            ) from None
        except AuditLogDamaged as error:
            raise StartError(
                f"the audit log {path} cannot be continued: {error}; keep its files elsewhere for "
                f"an investigation (`aerobee audit verify {path}`), and start again",
                "auditLogPath",
            ) from None
        except OSError as error:
            raise StartError(
                f"the audit log {path} cannot be written: {error.strerror}; make it writable, or "
                "set another auditLogPath",
                "auditLogPath",
            ) from None
        self._opened = True
        await self._summary.start()

    async def stop(self) -> None:
        """Write the last lines, and close the log."""
        if self._opened:
            await self._summary.stop()
            await self._write_counted()
            self._write({"event": CLOSED})
        # This runs after all lines that are waiting.
        await self._on_writer(self._log.close)
        self._writer.shutdown()
        self.reader.close()

    # ---- changes and logins ----

    def covers(self, path: str, request: Any) -> bool:
        """Return whether a call of "/package.Service/Method" is a change or a login.

        A dry run changes nothing.
        """
        return path in _CHANGES and not getattr(request, "dry_run", False)

    @asynccontextmanager
    async def change(
        self, path: str, request: Any, call: Call, states: States
    ) -> AsyncIterator[None]:
        """Write the first line of a change, run the block, and write its result.

        A login has one line. Raises ChangeNotAudited before the block if the line cannot be
        written.
        """
        who = Who.of(call.caller, call)
        resources = resources_of(path, request, self._cluster)
        if path in _LOGINS:
            if who.user:
                visitor = request.visitor[:LONGEST_TEXT]
                fields = {**who.fields, "visitor": visitor, "rpc": rpc_name(path), "result": "OK"}
                await self._write_or_refuse({"event": LOGIN, **fields})
            yield
            return
        state = partial(states.of, path, request, call)
        async with self.change_by(who, path, resources, state):
            yield

    @asynccontextmanager
    async def change_by(
        self,
        who: Who,
        path: str,
        resources: Sequence[str],
        state: Callable[[], Awaitable[Any]] = _no_state,
    ) -> AsyncIterator[Change]:
        """Write the first line of a change of these resources, run the block, and write its result.

        `state` returns the state as JSON, or None if it is unknown. Raises ChangeNotAudited before
        the block if the line cannot be written.
        """
        record: dict[str, Any] = {
            "request_id": secrets.token_hex(8),
            **who.fields,
            "rpc": rpc_name(path),
            **_limited(resources),
        }
        if (before := await state()) is not None:
            record["before"] = before
        await self._write_or_refuse({"event": CHANGE, **record})
        change = Change("CANCELLED")
        try:
            yield change
            change.end("OK")
            if (after := await state()) is not None:
                record["after"] = after
        except MqError as error:
            change.end(error.code.name)
            raise
        except Exception:
            change.end("INTERNAL")
            raise
        finally:
            self._write({"event": RESULT, **record, "result": change.result})

    async def _write_or_refuse(self, record: Mapping[str, Any]) -> None:
        try:
            await self._on_writer(self._append, record, True)
        except OSError as error:
            self.refused += 1
            reason = error.strerror or str(error)
            structlog.get_logger().error("change_not_audited", rpc=record["rpc"], reason=reason)
            raise ChangeNotAudited(str(self._log.path), reason) from None

    # ---- calls that are counted ----

    def rejected(self, who: Who, path: str, result: str, reason: str) -> None:
        """Write a rejected call: the first one of a minute at once, and further ones as one line.

        A caller that sends many of them can neither fill the log nor delay others.

        Args:
            who: The caller.
            path: "/package.Service/Method".
            result: The code of the error.
            reason: The message of the error.
        """
        if self._rejected.is_new(who, rpc := rpc_name(path), ""):
            fields = {"rpc": rpc, "result": result, "reason": reason[:LONGEST_TEXT]}
            first = self._rejected.add(who, {"event": REJECTED, **who.fields, **fields}, "")
            self._write(first)

    def reads(self, path: str) -> bool:
        """Return whether calls of "/package.Service/Method" read bodies, and have lines."""
        return self.with_reads and path in READS

    def read(self, path: str, request: Any, call: Call) -> None:
        """Write a call that has read bodies. Further ones of a minute are one line."""
        resources = resources_of(path, request, self._cluster)
        self.read_by(Who.of(call.caller, call), path, resources)

    def read_by(self, who: Who, path: str, resources: Sequence[str]) -> None:
        """Write a call that has read bodies of messages of these resources."""
        rpc, key = rpc_name(path), " ".join(resources)
        if self._read.is_new(who, rpc, key):
            fields = {"rpc": rpc, **_limited(resources), "result": "OK"}
            self._write(self._read.add(who, {"event": READ, **who.fields, **fields}, key))

    async def _write_counted(self) -> None:
        """Write how many calls there were since the last time, besides the first ones."""
        for counted in (self._rejected, self._read):
            for record in counted.further():
                self._write(record)

    # ---- lines ----

    def _write(self, record: Mapping[str, Any]) -> None:
        """Write a line soon. Log a failure: nothing can be refused any more."""
        self._writer.submit(self._append_or_log, record)

    def _append_or_log(self, record: Mapping[str, Any]) -> None:
        try:
            self._append(record, False)
        except OSError as error:
            self.lost += 1
            structlog.get_logger().error(
                "audit_line_lost",
                audited=record["event"],
                rpc=record.get("rpc", ""),
                reason=error.strerror or str(error),
            )

    def _append(self, record: Mapping[str, Any], durable: bool) -> None:
        self._log.append({"timestamp_ms": self._clock.now_ms(), **record}, durable=durable)

    async def _on_writer(self, function: Callable[..., None], *given: Any) -> None:
        await asyncio.get_running_loop().run_in_executor(self._writer, function, *given)


class _Counted:
    """Count calls by caller, RPC and resources. At most `most` of them have lines of their own."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._records: dict[tuple[tuple[str, str], str, str], dict[str, Any]] = {}

    def is_new(self, who: Who, rpc: str, resources: str) -> bool:
        """Return whether a call is the first one of its kind since `further`, or count it."""
        key = who.key, rpc, resources
        if key not in self._records and len(self._records) >= self._most:
            key = _OTHERS
        record = self._records.get(key)
        if record is None:
            return True
        record["count"] += 1
        return False

    def add(self, who: Who, record: dict[str, Any], resources: str) -> dict[str, Any]:
        """Add the first call of its kind, and return its line."""
        key = who.key, record["rpc"], resources
        if len(self._records) >= self._most:
            key = _OTHERS
            record = {**record, **Who().fields, "rpc": "others", "resources": []}
        self._records[key] = {**record, "count": 0}
        return {**record, "count": 1}

    def further(self) -> list[dict[str, Any]]:
        """Return a line for each kind of call that was counted, and begin again."""
        found = [record for record in self._records.values() if record["count"]]
        self._records = {}
        return found


_OTHERS = ("", ""), "others", ""


def _limited(resources: Sequence[str]) -> dict[str, Any]:
    """Return the fields with the resources of a line."""
    fields: dict[str, Any] = {
        "resources": [each[:LONGEST_TEXT] for each in resources[:MOST_RESOURCES]]
    }
    if len(resources) > MOST_RESOURCES:
        fields["further_resources"] = len(resources) - MOST_RESOURCES
    return fields


def holder_of(call: Call) -> Identity | None:
    """Return who holds the certificate of a caller, also if the caller signed the call."""
    return _identity_of(call.certificate_uris)


@lru_cache(maxsize=1_024)  # a connection makes many calls
def _identity_of(uris: tuple[str, ...]) -> Identity | None:
    return identity_of(uris)
