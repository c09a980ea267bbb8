"""Hold the callers of a name server or broker to their quotas.

Only RPCs that clients may call are metered. A call of another process of the cluster is not: a
proxy counts its own clients, and a broker does not count them again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from aerobee_cluster.access.quota_buckets import Client, QuotaBuckets, host_of_peer
from aerobee_wire.access.caller import Caller
from aerobee_wire.identity import BROKER, CLIENT, CONSOLE, NAMESRV, PROXY
from aerobee_wire.permissions import TABLE
from aerobee_wire.rpcs import LITE_POP, POP, PULL, SEND

INTERNAL = frozenset({PROXY, BROKER, NAMESRV, CONSOLE})
_METERED = frozenset(path for path, row in TABLE.items() if CLIENT in row.roles)
# Messages and bytes of an answer, by the path of the RPC.
_RECEIVED: Mapping[str, Callable[[Any], tuple[int, int]]] = {
    PULL.path: lambda answer: (answer.message_count, len(answer.records)),
    POP.path: lambda answer: (answer.message_count, len(answer.records)),
    LITE_POP.path: lambda answer: (
        sum(each.messages.message_count for each in answer.batches),
        sum(len(each.messages.records) for each in answer.batches),
    ),
}


class Call(Protocol):
    """The RPC in progress, as the chassis passes it."""

    @property
    def peer(self) -> str: ...

    @property
    def caller(self) -> Caller: ...


class CallMeter:
    """Meter the calls of one server."""

    def __init__(self, buckets: QuotaBuckets) -> None:
        self.buckets = buckets

    @property
    def active(self) -> bool:
        """Return whether there is a quota."""
        return self.buckets.active

    async def before(self, path: str, request: Any, call: Call) -> None:
        """Wait until a call is within the quotas of its caller.

        Raises MqError with the code FLOW_CONTROL, for a send.
        """
        if path not in _METERED or _is_internal(call):
            return
        if path == SEND.path:
            # Copies, because the end of an iteration over a field itself takes 4 µs. The joined
            # bodies would be copied to know their length; the send checks the sizes.
            sizes = request.batch.body_sizes[:]
            if len(messages := request.messages):
                sizes += [len(message.body) for message in messages[:]]
            await self.buckets.send(_client(call), len(sizes), sum(sizes))
        else:
            client = _client(call, getattr(request, "client_id", ""))
            await self.buckets.call(client, receives=path in _RECEIVED)

    def after(self, path: str, request: Any, call: Call, answer: Any) -> None:
        """Count the messages of an answer."""
        received = _RECEIVED.get(path)
        if received is not None and answer is not None and not _is_internal(call):
            self.buckets.received(_client(call, request.client_id), *received(answer))


def _is_internal(call: Call) -> bool:
    """Return whether another process of the cluster calls."""
    identity, signed, _ = call.caller
    return signed is None and identity is not None and identity.role in INTERNAL


def _client(call: Call, client_id: str = "") -> Client:
    signed = call.caller.signed
    return Client("" if signed is None else signed.user.name, client_id, host_of_peer(call.peer))
