"""Write changes and rejected calls of a server to its audit log.

A change has two lines with the same request id: the first one is on the disk before the handler
runs, and the second one has the result. If the first one cannot be written, the change is refused.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import lru_cache
from typing import Any

import structlog

from aerobee_chassis.background import BackgroundTask, PeriodicTask
from aerobee_chassis.clock import Clock
from aerobee_chassis.errors import StartError
from aerobee_chassis.lifecycle import Component
from aerobee_chassis.rpc.audit_log import AuditLog, AuditLogDamaged
from aerobee_chassis.rpc.audit_reader import AuditReader
from aerobee_chassis.rpc.call import Call
from aerobee_wire.access.caller import Caller
from aerobee_wire.audit import CHANGE, OPENED, REJECTED, RESULT
from aerobee_wire.identity import Identity, identity_of
from aerobee_wire.permissions import TABLE, resources_of, rpc_name
from aerobee_wire.status import Code, MqError

MINUTE_S = 60.0
MOST_CALLERS = 1_000  # callers and RPCs with lines of their own in a minute
MOST_RESOURCES = 16  # of one change
LONGEST_TEXT = 256  # characters of a name or a reason

_CHANGES = frozenset(path for path, row in TABLE.items() if row.is_change)


class ChangeNotAudited(MqError):
    """The line of a change cannot be written, so that the change is refused."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(
            Code.SERVICE_NOT_AVAILABLE,
            f"the change was refused, because the audit log cannot be written: {path}: {reason}; "
            "free space on its disk, and retry",
            about="auditLogPath",
        )


class Audit(Component):
    """Write the audit log of one server.

    `cluster` is the cluster of this process. `clock` gives the time of lines. Tests replace
    `writer`, on which lines are written in their order.
    """

    def __init__(
        self, log: AuditLog, cluster: str, clock: Clock, writer: Executor | None = None
    ) -> None:
        self._log = log
        self._cluster = cluster
        self._clock = clock
        # One thread: lines keep their order, and a slow disk does not stop the event loop.
        self._writer = writer or ThreadPoolExecutor(1, "audit")
        self._further: dict[tuple[str, str, str], dict[str, Any]] = {}
        self.reader = AuditReader(log.path, lambda: log.last, writer)
        self._summary: BackgroundTask = PeriodicTask("audit", MINUTE_S, self._write_further)

    async def start(self) -> None:
        """Open the log. Raises StartError if no line can be written."""
        loop = asyncio.get_running_loop()
        path = str(self._log.path)
        try:
            await loop.run_in_executor(self._writer, self._log.open)
            await loop.run_in_executor(self._writer, self._append, {"event": OPENED}, True)
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
        await self._summary.start()

    async def stop(self) -> None:
        await self._summary.stop()
        await self._write_further()
        # This runs after all lines that are waiting.
        await asyncio.get_running_loop().run_in_executor(self._writer, self._log.close)
        self._writer.shutdown()
        self.reader.close()

    def covers(self, path: str, request: Any) -> bool:
        """Return whether a call of "/package.Service/Method" is a change. A dry run is none."""
        return path in _CHANGES and not getattr(request, "dry_run", False)

    @asynccontextmanager
    async def change(self, path: str, request: Any, call: Call) -> AsyncIterator[None]:
        """Write the first line of a change, run the block, and write its result.

        Raises ChangeNotAudited before the block if the line cannot be written.
        """
        caller = call.caller
        identity = caller.identity or _identity_of(call.certificate_uris)
        resources = [each[:LONGEST_TEXT] for each in resources_of(path, request, self._cluster)]
        record: dict[str, Any] = {
            "event": CHANGE,
            "request_id": secrets.token_hex(8),
            **_who(caller, identity),
            "address": caller.source or call.peer,
            "rpc": rpc_name(path),
            "resources": resources[:MOST_RESOURCES],
        }
        if len(resources) > MOST_RESOURCES:
            record["further_resources"] = len(resources) - MOST_RESOURCES
        loop = asyncio.get_running_loop()
        try:
            await loop.run_in_executor(self._writer, self._append, record, True)
        except OSError as error:
            reason = error.strerror or str(error)
            structlog.get_logger().error("change_not_audited", rpc=path, reason=reason)
            raise ChangeNotAudited(str(self._log.path), reason) from None
        result = "CANCELLED"
        try:
            yield
            result = "OK"
        except MqError as error:
            result = error.code.name
            raise
        except Exception:
            result = "INTERNAL"
            raise
        finally:
            self._write({**record, "event": RESULT, "result": result})

    def rejected(self, caller: Caller, path: str, error: MqError) -> None:
        """Write a rejected call: the first one of a minute at once, and further ones as one line.

        A caller that sends many of them can neither fill the log nor delay others.
        """
        who = _who(caller, caller.identity)
        is_known = who["user"] or who["certificate"]
        host = "" if is_known else caller.source.rpartition(":")[0]
        key = who["user"] or who["certificate"], host, rpc_name(path)
        if key not in self._further and len(self._further) >= MOST_CALLERS:
            key, who = ("", "", "others"), _who(Caller(), None)
        record = {
            "event": REJECTED,
            **who,
            "address": caller.source,
            "rpc": key[2],
            "result": error.code.name,
            "reason": error.message[:LONGEST_TEXT],
        }
        further = self._further.get(key)
        if further is None:
            self._further[key] = {**record, "count": 0}
            self._write({**record, "count": 1})
        else:
            self._further[key] = {**record, "count": further["count"] + 1}

    async def _write_further(self) -> None:
        """Write how many calls were rejected since the last time, besides the first ones."""
        found, self._further = self._further, {}
        for record in found.values():
            if record["count"]:
                self._write(record)

    def _write(self, record: Mapping[str, Any]) -> None:
        """Write a line soon. Log a failure: nothing can be refused any more."""
        self._writer.submit(self._append_or_log, record)

    def _append_or_log(self, record: Mapping[str, Any]) -> None:
        try:
            self._append(record, False)
        except OSError as error:
            structlog.get_logger().error(
                "audit_line_lost",
                audited=record["event"],
                rpc=record["rpc"],
                reason=error.strerror or str(error),
            )

    def _append(self, record: Mapping[str, Any], durable: bool) -> None:
        self._log.append({"timestamp_ms": self._clock.now_ms(), **record}, durable=durable)


def _who(caller: Caller, identity: Identity | None) -> dict[str, str]:
    user = "" if caller.user is None else caller.user.name[:LONGEST_TEXT]
    certificate = str(identity or "")[:LONGEST_TEXT]
    proof = "signature" if user else "certificate" if certificate else "none"
    return {"user": user, "certificate": certificate, "proof": proof}


@lru_cache(maxsize=1_024)
def _identity_of(uris: tuple[str, ...]) -> Identity | None:
    return identity_of(uris)
