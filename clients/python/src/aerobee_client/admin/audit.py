"""Read the audit logs of name servers and brokers: part of AsyncAdminClient."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from aerobee.audit.v1 import audit_pb2 as pb

from aerobee_client.admin.brokers import BrokerAdmin, numbers_fit
from aerobee_client.runtime.kinds import checked_class
from aerobee_wire.rpcs import BROKER_AUDIT, NAMESRV_AUDIT, Rpc
from aerobee_wire.status import MqError

AuditRpc = Rpc[pb.ListAuditLinesRequest, pb.ListAuditLinesResponse]


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditLine:
    """A line of the audit log of a server.

    Attributes:
        server: The server, such as "name server 10.0.0.1:9876" or "broker b at 10.0.0.2:10911".
        number: The number of the line in the log of that server.
        timestamp_ms: When it was written, in milliseconds since the epoch.
        event: "change", "rejected", "login", "read", "opened", "closed" or "damaged".
        request_id: The id of a change, or "".
        user: The user who signed the call, or "".
        claimed_user: The user that the signature of a rejected call names, without a proof.
        proof: "signature", "certificate" or "none".
        certificate: The URI in the certificate of the caller, or "".
        address: The "host:port" of the caller.
        visitor: The address of the browser of a login, as the console states it.
        rpc: The RPC, such as "AdminService/DeleteTopic".
        resources: The resources, such as "Topic:orders"; at most 16.
        further_resources: The number of resources that are not in `resources`.
        before: The state before a change, if it is known.
        after: The state after a change that succeeded, if it is known.
        result: "OK", or the code of the error. It is "" for a change that still runs, or whose
            process stopped before the change ended.
        reason: Why a call was rejected.
        count: The number of calls.
    """

    server: str
    number: int
    timestamp_ms: int
    event: str
    request_id: str
    user: str
    claimed_user: str
    proof: str
    certificate: str
    address: str
    visitor: str
    rpc: str
    resources: tuple[str, ...]
    further_resources: int
    before: Any
    after: Any
    result: str
    reason: str
    count: int

    @classmethod
    def of(cls, server: str, line: pb.AuditLine) -> AuditLine:
        return cls(
            server=server,
            number=line.number,
            timestamp_ms=line.time_ms,
            event=line.event,
            request_id=line.request_id,
            user=line.user,
            claimed_user=line.claimed_user,
            proof=line.proof,
            certificate=line.certificate,
            address=line.address,
            visitor=line.visitor,
            rpc=line.rpc,
            resources=tuple(line.resources),
            further_resources=line.further_resources,
            before=_state(line.before),
            after=_state(line.after),
            result=line.result,
            reason=line.reason,
            count=line.count or 1,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditPage:
    """Lines of audit logs, the newest first.

    Attributes:
        lines: The lines.
        complete_from_ms: All matching lines of the servers that answered are in the page, back to
            this time. Give it as `end_timestamp_ms` for the next page. None: there are no more.
        without_log: The servers that do not write an audit log.
        unanswered: The reason why each other server did not answer, by server.
        last: The number and the hash of the last line, by server.
    """

    lines: tuple[AuditLine, ...]
    complete_from_ms: int | None
    without_log: tuple[str, ...]
    unanswered: Mapping[str, str]
    last: Mapping[str, tuple[int, str]]


@checked_class
class AuditAdmin(BrokerAdmin):
    async def audit_page(
        self,
        *,
        server: str = "",
        event: str = "",
        user: str = "",
        rpc: str = "",
        resource: str = "",
        result: str = "",
        begin_timestamp_ms: int = 0,
        end_timestamp_ms: int = 0,
        limit: int = 100,
    ) -> AuditPage:
        """Return a page of the audit logs of all servers, the newest lines first.

        A page may have fewer lines than `limit`, because a server reads at most 4,000 lines for it.
        It may have more, because it ends between two milliseconds.

        Args:
            server: Only this server: its address, or the name of a broker.
            event: Only lines with this event: see AuditLine.
            user: Only lines with this user, claimed user, or URI of a certificate.
            rpc: Only lines with this RPC: "DeleteTopic" or "AdminService/DeleteTopic".
            resource: Only lines with this resource. A * at the end stands for any text.
            result: Only lines with this result: "OK", or the code of an error.
            begin_timestamp_ms: Only lines since this time, in milliseconds since the epoch.
            end_timestamp_ms: Only lines before this time. 0 stands for no limit.
            limit: The number of lines after which the page ends, at most 500.

        Returns:
            The page.

        Raises:
            MqError: INVALID_PARAMETER, or BROKER_NOT_EXIST if there is no such server; the failure
                of a server if no server answers.
        """
        with numbers_fit():
            request = pb.ListAuditLinesRequest(
                page_size=limit,
                from_ms=begin_timestamp_ms,
                to_ms=end_timestamp_ms,
                event=event,
                user=user,
                rpc=rpc,
                resource=resource,
                result=result,
            )
        servers = await self._audited(server)
        answers = await asyncio.gather(
            *(
                self._instance.transport.call(
                    address, rpc, request, timeout_s=self._brokers.timeout_s
                )
                for address, rpc in servers.values()
            ),
            return_exceptions=True,
        )
        failures: dict[str, MqError] = {}
        pages: dict[str, pb.ListAuditLinesResponse] = {}
        for name, answer in zip(servers, answers, strict=True):
            if isinstance(answer, MqError):
                failures[name] = answer
            elif isinstance(answer, BaseException):
                raise answer
            else:
                pages[name] = answer
        if not pages:
            raise next(iter(failures.values()))
        lines, complete_from_ms = _merged(pages, limit)
        return AuditPage(
            lines=lines,
            complete_from_ms=complete_from_ms or None,
            without_log=tuple(name for name, page in pages.items() if not page.enabled),
            unanswered={name: error.message for name, error in failures.items()},
            last={
                name: (page.last_number, page.last_hash)
                for name, page in pages.items()
                if page.enabled
            },
        )

    async def _audited(self, server: str) -> dict[str, tuple[str, AuditRpc]]:
        """Return the addresses of servers with their RPCs, by the names for people."""
        namesrvs = await self._instance.namesrv.present()
        if server in namesrvs:
            return {f"name server {server}": (server, NAMESRV_AUDIT)}
        if ":" in server:
            return {f"broker at {server}": (server, BROKER_AUDIT)}
        found: dict[str, tuple[str, AuditRpc]] = {}
        if server:
            brokers = {server: await self._brokers.addresses_of(server)}
        else:
            found = {f"name server {each}": (each, NAMESRV_AUDIT) for each in namesrvs}
            info = await self._brokers.cluster_info()
            brokers = {each.broker_name: each.addresses for each in info.brokers}
        for name, addresses in brokers.items():
            for address in sorted(set(addresses.values())):
                found[f"broker {name} at {address}"] = address, BROKER_AUDIT
        return found


def _merged(
    pages: Mapping[str, pb.ListAuditLinesResponse], limit: int
) -> tuple[tuple[AuditLine, ...], int]:
    """Return the lines of several servers, back to the time since which all of them are known."""
    complete_from_ms = max(page.complete_from_ms for page in pages.values())
    lines = sorted(
        (
            AuditLine.of(name, line)
            for name, page in pages.items()
            for line in page.lines
            if line.time_ms >= complete_from_ms
        ),
        key=lambda line: (-line.timestamp_ms, line.server, -line.number),
    )
    if 0 < limit < len(lines):
        # The page ends between two milliseconds, so that the next one can begin there.
        last_ms = lines[limit - 1].timestamp_ms
        kept = [line for line in lines if line.timestamp_ms >= last_ms]
        if len(kept) < len(lines):
            return tuple(kept), last_ms
    return tuple(lines), complete_from_ms


def _state(text: str) -> Any:
    return json.loads(text) if text else None
