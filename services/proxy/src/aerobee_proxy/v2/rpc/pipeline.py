"""Wrap every RPC handler: admit the caller, authorize the request, and answer failures.

A failure is reported as a Status inside the response, while gRPC itself reports success. Only a
telemetry stream may end with a gRPC error.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar, TypeVarTuple

from aerobee_foreign.apache.rocketmq.v2.definition_pb2 import Code, Settings
from aerobee_foreign.apache.rocketmq.v2.service_pb2 import (
    PullMessageRequest,
    ReceiveMessageRequest,
    SendMessageRequest,
)
from google.protobuf.message import Message

from aerobee_chassis.clock import Clock
from aerobee_chassis.rpc.access import RejectionLog
from aerobee_chassis.rpc.audit import Audit, Who
from aerobee_chassis.rpc.call import Call
from aerobee_chassis.rpc.held_calls import HeldCalls
from aerobee_cluster.access.quota_buckets import Client, QuotaBuckets, host_of_peer
from aerobee_proxy.counts import ProxyCounts
from aerobee_proxy.v2 import authorization
from aerobee_proxy.v2.authentication import Authentication, claimed_user
from aerobee_proxy.v2.sessions import Session, Sessions
from aerobee_proxy.v2.status import Refused, named, status_for
from aerobee_proxy.v2.validation import client_id
from aerobee_wire.access.users import User

Q = TypeVar("Q", bound=Message)
R = TypeVar("R", bound=Message)
Needs = TypeVarTuple("Needs")


SERVICE = "/apache.rocketmq.v2.MessagingService/"


def rpc_of(request: object) -> str:
    """Return the name of the RPC with this request: "SendMessage"."""
    if isinstance(request, Settings):
        return "Telemetry"
    return type(request).__name__.removesuffix("Request")


def _rpc_with(response: type[Message]) -> str:
    """Return the name of the RPC with this response."""
    return response.__name__.removesuffix("Response")


class Caller(NamedTuple):
    """The client that makes a call."""

    client_id: str
    session: Session
    call: Call
    user: User | None  # None if authentication is off
    quotas: QuotaBuckets | None = None  # None if there are no quotas

    @property
    def client(self) -> Client:
        """Return the client, as quotas name it."""
        return Client(self.session.user, self.client_id, host_of_peer(self.call.peer))

    def received(self, messages: int, size: int) -> None:
        """Count messages that the client received, and the bytes of their records."""
        if self.quotas is not None and self.quotas.active:
            self.quotas.received(self.client, messages, size)


class NotAdmitted(Refused):
    """The caller is not authenticated, lacks a right or a client id, or is one client too many.

    Codes: UNAUTHORIZED, CLIENT_ID_REQUIRED, TOO_MANY_REQUESTS. `user` is the user who signed the
    call, or "".
    """

    def __init__(self, code: Code, message: str, user: str = "") -> None:
        super().__init__(code, message)
        self.user = user


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Wraps handlers with the steps of every RPC.

    If `authentication` is None, any client may call. If `checks_rights` is true, the user's
    policies must allow each request. `audit` gets the calls that are not authenticated or lack a
    right. With `observed`, these calls are logged there instead of being rejected.
    """

    sessions: Sessions
    clock: Clock
    counts: ProxyCounts
    authentication: Authentication | None
    checks_rights: bool
    max_clients_per_user: Callable[[], int]
    quotas: QuotaBuckets | None = None
    audit: Audit | None = None
    observed: RejectionLog | None = None
    held: HeldCalls = field(default_factory=lambda: HeldCalls(NotAdmitted))

    def admit(self, call: Call, rpc: str) -> Caller:
        """Authenticate the caller of an RPC, and create its session or keep its session alive.

        Raises NotAdmitted if the caller may not use this proxy.
        """
        metadata = call.metadata
        try:
            user = self._user(call, metadata, rpc)
            found = client_id(metadata)
            name = user.name if user is not None else ""
            if self.sessions.get(found, name) is None:
                self._check_new(name)
        except Refused as refusal:
            raise NotAdmitted(refusal.code, refusal.message) from None
        session = self.sessions.touch(found, self.clock.real.monotonic_ms(), name, call.peer)
        return Caller(found, session, call, user, self.quotas)

    def _user(self, call: Call, metadata: Mapping[str, str], rpc: str) -> User | None:
        """Return the user who signed a call, or None. Raises Refused if the call is rejected."""
        authentication = self.authentication
        if authentication is None:
            return None
        if self.observed is None:
            return authentication.check(call, metadata)
        if not authentication.users.complete:
            return None
        user = None
        try:
            user = authentication.current(metadata)
            authentication.check_tls(call)
        except Refused as refusal:
            self._observe(self.observed, rpc, refusal, call, claimed_user(metadata))
        return user

    def _observe(
        self, log: RejectionLog, rpc: str, refusal: Refused, call: Call, user: str
    ) -> None:
        """Count and log a call that would be rejected."""
        self.counts.unauthorized += 1
        who = f"user {user}" if user else ""
        log.note(SERVICE + rpc, call.peer, refusal.message, who=who, passes=True)

    async def meter(self, request: object, caller: Caller) -> None:
        """Wait until a call is within the quotas of its caller.

        Raises MqError with the code FLOW_CONTROL, for a send.
        """
        quotas = self.quotas
        if quotas is None or not quotas.active:
            return
        if isinstance(request, SendMessageRequest):
            messages = request.messages
            if (count := len(messages)) == 1:  # of most requests
                size = len(messages[0].body)
            else:  # a copy, because the end of an iteration over the field itself takes 4 µs
                size = sum([len(message.body) for message in messages[:]])
            await quotas.send(caller.client, count, size)
        else:
            receives = isinstance(request, ReceiveMessageRequest | PullMessageRequest)
            await quotas.call(caller.client, receives=receives)

    def _check_new(self, user: str) -> None:
        """Raise Refused with the code TOO_MANY_REQUESTS if there are too many clients."""
        if self.sessions.full:
            raise Refused(
                Code.TOO_MANY_REQUESTS,
                f"this proxy knows {len(self.sessions)} clients already: close clients that "
                "are not used, or run another proxy",
            )
        most = self.max_clients_per_user()
        if user and self.sessions.count_of(user) >= most:
            raise Refused(
                Code.TOO_MANY_REQUESTS,
                f"user {user!r} has {most} clients at this proxy, the most "
                "that maxClientsPerUser allows: close clients that are not used, or use another "
                "user",
            )

    def authorize(self, request: object, caller: Caller) -> None:
        """Check that the user has the rights that the request needs.

        Raises NotAdmitted with the code UNAUTHORIZED if the user lacks a right.
        """
        if caller.user is None or not self.checks_rights:
            return
        try:
            authorization.check(caller.user, request, caller.call.peer)
        except Refused as refusal:
            if self.observed is not None:
                self._observe(
                    self.observed, rpc_of(request), refusal, caller.call, caller.user.name
                )
                return
            self.counts.unauthorized += 1
            raise NotAdmitted(refusal.code, refusal.message, caller.user.name) from None

    def hold(
        self, caller: Caller, request: Callable[[], object | None]
    ) -> AbstractContextManager[None]:
        """Return a block in which a lasting call ends if its user loses the right to make it.

        `request` returns the present request; None needs no right. The block then raises
        NotAdmitted.
        """

        def check() -> None:
            if self.authentication is None or caller.user is None or self.observed is not None:
                return
            try:
                user = self.authentication.current(caller.call.metadata)
            except Refused as refusal:
                raise NotAdmitted(refusal.code, refusal.message, user_name) from None
            if (present := request()) is not None:
                self.authorize(present, caller._replace(user=user))

        user_name = caller.user.name if caller.user is not None else ""
        return self.held.hold(user_name, check)

    def note_refusal(self, rpc: str, error: Exception, call: Call) -> None:
        """Write a call without a valid signature or a right to the audit log."""
        if self.audit is None or not isinstance(error, NotAdmitted):
            return
        if error.code == Code.UNAUTHORIZED:
            who = Who(error.user, "" if error.user else claimed_user(call.metadata), "", call.peer)
            self.audit.rejected(who, SERVICE + rpc, Code.Name(error.code), error.message)

    def _note_read(self, request: object, caller: Caller) -> None:
        """Write a call that has read bodies to the audit log, if it has such lines."""
        if self.audit is not None and self.audit.reads(path := SERVICE + rpc_of(request)):
            needs = authorization.NEEDS[type(request)](request)
            who = Who(caller.session.user, address=caller.call.peer)
            self.audit.read_by(who, path, [f"{need.kind}:{need.name}" for need in needs])

    def unary(
        self,
        response: type[R],
        handler: Callable[[*Needs, Q, Caller], Coroutine[Any, Any, R]],
        *needs: *Needs,
        failure_named: bool = False,
    ) -> Callable[[Q, Call], Awaitable[R]]:
        """Wrap the handler of a unary RPC for the gRPC server.

        The wrapper passes `needs` to the handler as its first arguments. A failure becomes
        `response(status=…)`. With `failure_named`, the message of the status begins with the name
        of the code.
        """
        rpc = _rpc_with(response)

        async def run(request: Q, call: Call) -> R:
            try:
                caller = self.admit(call, rpc)
                self.authorize(request, caller)
                await self.meter(request, caller)
                return await handler(*needs, request, caller)
            except Exception as error:
                self.note_refusal(rpc, error, call)
                found = status_for(handler.__name__, error)
                return response(status=named(found) if failure_named else found)

        return run

    def streaming(
        self,
        response: type[R],
        handler: Callable[[*Needs, Q, Caller], Coroutine[Any, Any, None]],
        *needs: *Needs,
        last: Callable[[], R] | None = None,
    ) -> Callable[[Q, Call], Awaitable[R | None]]:
        """Wrap the handler of an RPC that returns a stream of responses.

        The wrapper passes `needs` to the handler as its first arguments. A failure becomes the next
        response of the stream. `last` creates the response that ends the stream, unless the caller
        is not admitted.
        """
        rpc = _rpc_with(response)

        async def run(request: Q, call: Call) -> R | None:
            try:
                caller = self.admit(call, rpc)
                self.authorize(request, caller)
                with self.hold(caller, lambda: request):
                    await self.meter(request, caller)
                    await handler(*needs, request, caller)
                    self._note_read(request, caller)
            except Exception as error:
                self.note_refusal(rpc, error, call)
                failure = response(status=status_for(handler.__name__, error))
                if isinstance(error, NotAdmitted):
                    return failure  # its answer may be delayed, without the request
                await call.write(failure)
            return last() if last is not None else None

        return run
