"""RPCs that brokers do not offer: answered with the status NOT_IMPLEMENTED.

docs/compatibility.md lists them under *Limits*.
"""

from __future__ import annotations

from typing import Any

from apache.rocketmq.v2.definition_pb2 import Code

from aerobee_proxy.v2.rpc.pipeline import Caller
from aerobee_proxy.v2.status import Refused


async def unimplemented(feature: str, request: Any, caller: Caller) -> Any:
    """Refuses every request. `feature`: a plural, "lite topics"."""
    raise Refused(Code.NOT_IMPLEMENTED, f"{feature} are not offered by brokers of this version")
