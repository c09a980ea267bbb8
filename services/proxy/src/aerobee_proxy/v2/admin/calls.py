"""Wrap the handlers of the administration port: authenticate, authorize, and answer failures.

Rights are checked whenever calls are signed, also without authorizationEnabled: that option is
about producers and consumers. Callers are not clients: they have no session and no client id.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import structlog
from google.protobuf.message import Message

from aerobee_chassis.rpc.call import Call
from aerobee_proxy.counts import ProxyCounts
from aerobee_proxy.v2.admin import needs
from aerobee_proxy.v2.authentication import Authentication
from aerobee_proxy.v2.status import Refused, named, status_for
from aerobee_wire.access.users import User

Q = TypeVar("Q", bound=Message)
R = TypeVar("R", bound=Message)


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
    """If `authentication` is None, each caller may call. `cluster` is the name of the cluster."""

    authentication: Authentication | None
    counts: ProxyCounts
    cluster: str

    def admit(self, request: object, call: Call) -> Operator:
        """Return the caller of an RPC. Raises Refused if it may not make this call."""
        if self.authentication is None:
            return Operator(call, None)
        # The command signs like a caller of brokers, and the server has checked that.
        user = call.caller.user or self.authentication.check(call.metadata, call.peer)
        try:
            needs.check(user, request, call.peer, self.cluster)
        except Refused:
            self.counts.unauthorized += 1
            raise
        return Operator(call, user)

    def answered(
        self,
        response: Callable[..., R],
        handler: Callable[[Q, Operator], Coroutine[Any, Any, R]],
    ) -> Callable[[Q, Call], Awaitable[R]]:
        """Wrap a handler. A failure becomes `response(status=…)`."""

        async def run(request: Q, call: Call) -> R:
            try:
                return await handler(request, self.admit(request, call))
            except Exception as error:
                return response(status=named(status_for(handler.__name__, error)))

        return run

    def failing(
        self, handler: Callable[[Q, Operator], Coroutine[Any, Any, R]]
    ) -> Callable[[Q, Call], Awaitable[R]]:
        """Wrap a handler whose answer has no status. A failure fails the call."""

        async def run(request: Q, call: Call) -> R:
            return await handler(request, self.admit(request, call))

        return run
