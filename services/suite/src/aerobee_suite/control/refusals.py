"""Calls that a test has refused: the next ones of an RPC fail with a response code."""

from __future__ import annotations

import difflib
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from google.protobuf.message import Message

from aerobee_chassis.rpc.call import Call, Handler
from aerobee_chassis.rpc.services import Method, Service
from aerobee_wire.status import Code, MqError


@dataclass(slots=True, eq=False)
class Refusals:
    """RPCs are named without their service: "Send". Those of name server and broker differ."""

    _codes: dict[str, deque[Code]] = field(default_factory=dict)

    def refuse(self, rpc: str, code: Code, times: int) -> None:
        """Replaces what was refused of this RPC. Raises INVALID_PARAMETER for an unknown one."""
        if rpc not in self._codes:
            nearest = difflib.get_close_matches(rpc, self._codes, n=1)
            hint = f"did you mean {nearest[0]}?" if nearest else f"there are {sorted(self._codes)}"
            raise MqError(Code.INVALID_PARAMETER, f"there is no RPC {rpc!r}: {hint}", about="rpc")
        self._codes[rpc] = deque([code] * times)

    def guard(self, services: Sequence[Service]) -> list[Service]:
        """The services, with refusals before each handler."""
        return [
            replace(service, methods=tuple(map(self._guarded, service.methods)))
            for service in services
        ]

    def _guarded(self, method: Method) -> Method:
        # A broker that is started again has the same RPCs: what is refused stays so.
        self._codes.setdefault(method.name, deque())
        return replace(method, handler=_Guarded(method.name, method.handler, self._codes))


@dataclass(frozen=True, slots=True)
class _Guarded:
    """A handler behind refusals."""

    rpc: str
    handler: Handler
    codes: dict[str, deque[Code]]

    async def __call__(self, request: Any, call: Call, /) -> Message | None:
        if codes := self.codes[self.rpc]:
            code = codes.popleft()
            raise MqError(code, f"a test has {self.rpc} refused with {code.name}", retryable=True)
        return await self.handler(request, call)
