"""What stands around every RPC: who calls, and how a failure is told.

Failures travel as a Status inside the response; gRPC itself reports success. Only a telemetry
stream may end with an error of gRPC.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, TypeAlias, TypeVar

import structlog
from apache.rocketmq.v2.definition_pb2 import Code, Status
from google.protobuf.message import Message

from aerobee_chassis.rpc.call import Call
from aerobee_proxy.access.users import User
from aerobee_proxy.v2 import authorization
from aerobee_proxy.v2.context import Parts
from aerobee_proxy.v2.errors import INTERNAL_MESSAGE, Refused, status, status_of
from aerobee_proxy.v2.sessions import Session
from aerobee_proxy.v2.validation import client_id

Q = TypeVar("Q", bound=Message)
R = TypeVar("R", bound=Message)


class Caller(NamedTuple):
    """Who calls, and how long it waits."""

    client_id: str
    session: Session
    call: Call
    user: User | None  # None: nobody is asked

    @property
    def peer(self) -> str:
        return self.call.peer


class NotAdmitted(Refused):
    """Who calls is not known, may not, or is one too many: UNAUTHORIZED, CLIENT_ID_REQUIRED,
    TOO_MANY_REQUESTS."""


Unary: TypeAlias = Callable[[Parts, Q, Caller], Awaitable[R]]
Streaming: TypeAlias = Callable[[Parts, Q, Caller], Awaitable[None]]


def caller_of(parts: Parts, call: Call) -> Caller:
    """Raises NotAdmitted. Whoever is admitted lives: its session is kept."""
    user = None
    try:
        if parts.authentication is not None:
            user = parts.authentication.check(call.metadata, call.peer)
        found = client_id(call.metadata)
        name = user.name if user is not None else ""
        if parts.sessions.full and parts.sessions.get(found, name) is None:
            raise Refused(
                Code.TOO_MANY_REQUESTS,
                f"this proxy knows {len(parts.sessions)} clients already: close clients that are "
                "not used, or run another proxy",
            )
    except Refused as refusal:
        raise NotAdmitted(refusal.code, refusal.message) from None
    session = parts.sessions.touch(found, parts.clock.monotonic_ms(), name)
    return Caller(found, session, call, user)


def authorize(parts: Parts, request: object, caller: Caller) -> None:
    """Raises NotAdmitted UNAUTHORIZED where the user may not do as the request asks."""
    if caller.user is None or not parts.options.authorization_enabled:
        return
    try:
        authorization.check(caller.user, request)
    except Refused as refusal:
        parts.counts.unauthorized += 1
        raise NotAdmitted(refusal.code, refusal.message) from None


def unary(
    parts: Parts, handler: Unary[Q, R], response: Callable[..., R]
) -> Callable[[Q, Call], Awaitable[R]]:
    """The handler as the chassis takes it; a failure becomes `response(status=…)`."""

    async def run(request: Q, call: Call) -> R:
        try:
            caller = caller_of(parts, call)
            authorize(parts, request, caller)
            return await handler(parts, request, caller)
        except Exception as error:
            return response(status=tell(handler, error))

    return run


def streaming(
    parts: Parts,
    handler: Streaming[Q],
    response: Callable[..., Any],
    last: Callable[[Parts], Any] | None = None,
) -> Callable[[Q, Call], Awaitable[Message | None]]:
    """Like `unary` for a stream of responses: a failure becomes its next message.

    `last` makes the message that ends the stream, whatever came before.
    """

    async def run(request: Q, call: Call) -> Message | None:
        try:
            caller = caller_of(parts, call)
            authorize(parts, request, caller)
            await handler(parts, request, caller)
        except Exception as error:
            await call.write(response(status=tell(handler, error)))
        return last(parts) if last is not None else None

    return run


def tell(handler: object, error: Exception) -> Status:
    """The status of a failure. A defect is logged with its traceback and told without details."""
    known = status_of(error)
    if known is not None:
        return known
    name = getattr(handler, "__name__", repr(handler))
    structlog.get_logger().error("rpc failed", rpc=name, exc_info=error)
    return status(Code.INTERNAL_SERVER_ERROR, INTERNAL_MESSAGE)
