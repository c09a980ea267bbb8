"""RPCs that brokers do not offer: answered with the status NOT_IMPLEMENTED and what is missing.

They stand in the README's table of limits.
"""

from __future__ import annotations

from typing import Any

from apache.rocketmq.v2.definition_pb2 import Code

from aerobee_proxy.v2.context import Parts
from aerobee_proxy.v2.errors import Refused
from aerobee_proxy.v2.rpc.pipeline import Caller, Unary


def not_offered(what: str) -> Unary[Any, Any]:
    """A handler that refuses: "`what` are not offered by this broker"."""

    async def refuse(parts: Parts, request: Any, caller: Caller) -> Any:
        raise Refused(Code.NOT_IMPLEMENTED, f"{what} are not offered by brokers of this version")

    return refuse
