"""Let a test make calls fail: the next calls of an RPC return a response code."""

from __future__ import annotations

import difflib
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from google.protobuf.message import Message

from aerobee_chassis.rpc.call import Call, Handler
from aerobee_chassis.rpc.services import Method, Service
from aerobee_wire.status import Code, MqError, invalid_parameter


@dataclass(slots=True, eq=False)
class Refusals:
    """The refusals of each RPC.

    An RPC is named without its service, for example "Send". RPCs of different services with the
    same name share their refusals.
    """

    _codes: dict[str, deque[Code]] = field(default_factory=dict)

    def refuse(self, rpc: str, code: Code, times: int) -> None:
        """Let the next `times` calls of an RPC fail with `code`, instead of earlier refusals.

        Raises MqError with the code INVALID_PARAMETER for an unknown RPC.
        """
        if rpc not in self._codes:
            nearest = difflib.get_close_matches(rpc, self._codes, n=1)
            hint = f"did you mean {nearest[0]}?" if nearest else f"there are {sorted(self._codes)}"
            raise invalid_parameter(f"there is no RPC {rpc!r}: {hint}", about="rpc")
        self._codes[rpc] = deque([code] * times)

    def guard(self, services: Sequence[Service]) -> list[Service]:
        """Return the services with handlers that check for refusals first."""
        return [
            replace(service, methods=tuple(map(self._guarded, service.methods)))
            for service in services
        ]

    def _guarded(self, method: Method) -> Method:
        # A restarted broker has the same RPCs, so refusals stay in force.
        self._codes.setdefault(method.name, deque())
        return replace(method, handler=_Guarded(method.name, method.handler, self._codes))


@dataclass(frozen=True, slots=True)
class _Guarded:
    """A handler that checks for refusals before it calls the real handler."""

    rpc: str
    handler: Handler
    codes: dict[str, deque[Code]]

    async def __call__(self, request: Any, call: Call, /) -> Message | None:
        if codes := self.codes[self.rpc]:
            code = codes.popleft()
            raise MqError(code, f"a test has {self.rpc} refused with {code.name}", retryable=True)
        return await self.handler(request, call)
