"""Wrap the handlers of the administration port: authenticate, authorize, audit, answer failures.

Rights are checked whenever calls are signed, also without authorizationEnabled: that option is
about producers and consumers. Callers are not clients: they have no session and no client id.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import structlog
from aerobee_foreign.apache.rocketmq.v2 import admin_pb2 as pb
from aerobee_foreign.apache.rocketmq.v2.definition_pb2 import Code
from google.protobuf.message import Message

from aerobee_chassis.rpc.audit import Audit, Who
from aerobee_chassis.rpc.call import Call
from aerobee_proxy.counts import ProxyCounts
from aerobee_proxy.v2.admin import needs
from aerobee_proxy.v2.authentication import Authentication, claimed_user
from aerobee_proxy.v2.status import Refused, named, status_for
from aerobee_wire.access.users import User

Q = TypeVar("Q", bound=Message)
R = TypeVar("R", bound=Message)

SERVICE = f"/{pb.DESCRIPTOR.services_by_name['Admin'].full_name}/"


class Operator(NamedTuple):
    """The caller of an RPC of the administration port."""

    call: Call
    user: User | None  # None if authentication is off

    @property
    def name(self) -> str:
        """Return the name of the user, or the address of a caller that did not sign."""
        return self.call.peer if self.user is None else self.user.name

    def did(self, event: str, **fields: object) -> None:
        """Log a change that the caller made."""
        log = structlog.get_logger()
        log.info(event, by=self.name, peer=self.call.peer, **fields)


@dataclass(frozen=True, slots=True)
class AdminCalls:
    """Checks whether a caller may make an admin call.

    If `authentication` is None, each caller may. `cluster` is the name of the cluster.

    `audit` gets changes before they are made, rejected calls, and reads of bodies.
    """

    authentication: Authentication | None
    counts: ProxyCounts
    cluster: str
    audit: Audit | None = None

    def admit(self, rpc: str, request: object, call: Call) -> Operator:
        """Return the caller of an RPC. Raises Refused if it may not make this call."""
        if self.authentication is None:
            return Operator(call, None)
        # The command signs like a caller of brokers, and the server has checked that.
        user = call.caller.user
        try:
            if user is None:
                user = self.authentication.check(call, call.metadata)
            self._check_rights(user, request, call.peer)
        except Refused as refusal:
            if self.audit is not None and refusal.code == Code.UNAUTHORIZED:
                claimed = claimed_user(call.metadata) if user is None else ""
                who = Who("" if user is None else user.name, claimed, address=call.peer)
                code = Code.Name(refusal.code)
                self.audit.rejected(who, SERVICE + rpc, code, refusal.message)
            raise
        return Operator(call, user)

    def _check_rights(self, user: User, request: object, peer: str) -> None:
        try:
            needs.check(user, request, peer, self.cluster)
        except Refused:
            self.counts.unauthorized += 1
            raise

    async def _run(
        self,
        handler: Callable[[Q, Operator], Coroutine[Any, Any, R]],
        request: Q,
        call: Call,
    ) -> R:
        """Run a handler for a caller that may make the call, and write it to the audit log."""
        rpc = _rpc_of(handler)
        operator, audit = self.admit(rpc, request, call), self.audit
        if audit is None:
            return await handler(request, operator)
        who = Who("" if operator.user is None else operator.user.name, address=call.peer)
        resources = needs.resources(request, self.cluster)
        if type(request) not in needs.CHANGES:
            answer = await handler(request, operator)
            if audit.with_reads and type(request) in needs.READS:
                audit.read_by(who, SERVICE + rpc, resources)
            return answer
        async with audit.change_by(who, SERVICE + rpc, resources) as change:
            try:
                answer = await handler(request, operator)
            except Refused as refusal:
                change.end(Code.Name(refusal.code))
                raise
            if "status" in answer.DESCRIPTOR.fields_by_name:
                change.end(Code.Name(answer.status.code))  # type: ignore[attr-defined]
            return answer

    def answered(
        self,
        response: Callable[..., R],
        handler: Callable[[Q, Operator], Coroutine[Any, Any, R]],
    ) -> Callable[[Q, Call], Awaitable[R]]:
        """Wrap a handler. A failure becomes `response(status=…)`."""

        async def run(request: Q, call: Call) -> R:
            try:
                return await self._run(handler, request, call)
            except Exception as error:
                return response(status=named(status_for(handler.__name__, error)))

        return run

    def failing(
        self, handler: Callable[[Q, Operator], Coroutine[Any, Any, R]]
    ) -> Callable[[Q, Call], Awaitable[R]]:
        """Wrap a handler whose answer has no status. A failure fails the call."""

        async def run(request: Q, call: Call) -> R:
            return await self._run(handler, request, call)

        return run


def _rpc_of(handler: Any) -> str:
    """Return the name of the RPC of a handler: "GetTopicRoute" for get_topic_route."""
    return "".join(part.capitalize() for part in str(handler.__name__).split("_"))
