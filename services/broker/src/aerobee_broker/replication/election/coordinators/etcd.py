"""Call etcd: values, errors, and calls to one of several endpoints.

The module does not depend on the broker: the caller defines keys and values. A write is sent once.
If no answer comes (`EtcdNoAnswer`), etcd may have carried out the write, or may do so later. The
caller then reads the keys again and compares.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Protocol, TypeAlias, TypeVar

from aerobee_foreign.etcd.v3 import etcd_pb2 as pb
from google.protobuf.message import Message

from aerobee_chassis.rpc.caller import Caller
from aerobee_chassis.rpc.transport import CallFailed, ChannelTls
from aerobee_wire.rpcs import Rpc, rpc

RANGE = rpc(pb.RangeRequest, pb.RangeResponse)
TXN = rpc(pb.TxnRequest, pb.TxnResponse)
GRANT = rpc(pb.LeaseGrantRequest, pb.LeaseGrantResponse)
REVOKE = rpc(pb.LeaseRevokeRequest, pb.LeaseRevokeResponse)
KEEP_ALIVE = rpc(pb.LeaseKeepAliveRequest, pb.LeaseKeepAliveResponse)
WATCH = rpc(pb.WatchRequest, pb.WatchResponse)

# With these statuses etcd has refused a request and changed nothing. Any other status may also
# come from a connection that broke after etcd received the request.
_REFUSALS = frozenset(
    {
        *("INVALID_ARGUMENT", "NOT_FOUND", "FAILED_PRECONDITION", "OUT_OF_RANGE"),
        *("PERMISSION_DENIED", "UNAUTHENTICATED", "RESOURCE_EXHAUSTED", "UNIMPLEMENTED"),
    }
)

T = TypeVar("T")
Q = TypeVar("Q", bound=Message)
R = TypeVar("R", bound=Message)


class EtcdError(Exception):
    """A call to etcd failed. The message names the endpoint and the reason."""


class EtcdNoAnswer(EtcdError):
    """No endpoint answered in time. A write may have been carried out, or may be later."""


class EtcdRefused(EtcdError):
    """etcd refused the request, and changed nothing."""


class LeaseGone(EtcdRefused):
    """The lease has ended, and its keys are deleted."""


class WatchCompacted(EtcdRefused):
    """The changes of a watch were compacted: read the keys again, and watch from that revision."""


@dataclass(frozen=True, slots=True)
class KeyValue:
    """A key and its value. `mod_revision` is the revision of the last put."""

    key: str
    value: bytes
    mod_revision: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The keys of a prefix at one revision of the cluster, in alphabetical order."""

    revision: int
    items: tuple[KeyValue, ...]


@dataclass(frozen=True, slots=True)
class Unchanged:
    """A condition: the last put of `key` has the revision `mod_revision`.

    The revision 0 means that the key does not exist.
    """

    key: str
    mod_revision: int


@dataclass(frozen=True, slots=True)
class Put:
    """A write of a key. With `lease_id` 0 the key stays until it is deleted."""

    key: str
    value: bytes
    lease_id: int = 0


@dataclass(frozen=True, slots=True)
class Delete:
    key: str


Write: TypeAlias = Put | Delete


class Etcd(Protocol):
    """Call etcd for a coordinator. Each method raises EtcdNoAnswer and EtcdRefused."""

    async def read(self, prefix: str) -> Snapshot:
        """Return all keys of a prefix, as of the newest acknowledged change."""

    async def write(self, conditions: Sequence[Unchanged], writes: Sequence[Write]) -> int | None:
        """Apply `writes` as one change if every condition holds, and return its revision.

        Return None, and change nothing, if a condition does not hold. Raises LeaseGone if the lease
        of a put has ended.
        """

    async def grant(self, ttl_s: int) -> int:
        """Return the id of a new lease.

        If no answer comes, etcd may have created a lease; it ends by itself.
        """

    async def keep_alive(self, lease_id: int) -> None:
        """Renew the lease for its whole duration from now. Raises LeaseGone if it has ended."""

    async def revoke(self, lease_id: int) -> None:
        """End the lease. Do nothing if it has ended already."""

    def watch(self, prefix: str, start_revision: int) -> AsyncGenerator[int, None]:
        """Yield the revision of each change below `prefix`, from `start_revision` on.

        The watch may yield only the last of several changes. Raises WatchCompacted, and
        EtcdNoAnswer when the stream breaks.

        An etcd member that is isolated from the other members may stay silent without limit.
        """


class EtcdClient:
    """Send each call to the endpoint that answered last, and to the next endpoint if it is silent.

    Create, use and close the client on one event loop.
    """

    def __init__(
        self, endpoints: Sequence[str], *, timeout_s: float, tls: ChannelTls | None = None
    ) -> None:
        """Create the client.

        `endpoints` has at least one "host:port". `timeout_s` limits each call to one endpoint.
        Without `tls` the client uses plaintext.
        """
        self._endpoints = tuple(endpoints)
        self._timeout_s = timeout_s
        self._current = 0
        self._caller = Caller(_error_of, tls)

    async def read(self, prefix: str) -> Snapshot:
        first, end = _range_of(prefix)
        request = pb.RangeRequest(key=first, range_end=end)
        response = await self._anywhere(lambda endpoint: self._unary(endpoint, RANGE, request))
        items = (
            KeyValue(kv.key.decode("utf-8", "replace"), kv.value, kv.mod_revision)
            for kv in response.kvs
        )
        return Snapshot(response.header.revision, tuple(items))

    async def write(self, conditions: Sequence[Unchanged], writes: Sequence[Write]) -> int | None:
        request = pb.TxnRequest(
            compare=[_compare(condition) for condition in conditions],
            success=[_operation(write) for write in writes],
        )
        response = await self._at(self._current, lambda at: self._unary(at, TXN, request))
        return response.header.revision if response.succeeded else None

    async def grant(self, ttl_s: int) -> int:
        request = pb.LeaseGrantRequest(ttl_s=ttl_s)
        response = await self._anywhere(lambda endpoint: self._unary(endpoint, GRANT, request))
        return response.id

    async def keep_alive(self, lease_id: int) -> None:
        answer = await self._anywhere(lambda endpoint: self._keep_alive(endpoint, lease_id))
        if not answer.ttl_s:
            raise LeaseGone(f"etcd has no lease {lease_id:x}: it ended")

    async def revoke(self, lease_id: int) -> None:
        request = pb.LeaseRevokeRequest(id=lease_id)
        try:
            await self._anywhere(lambda endpoint: self._unary(endpoint, REVOKE, request))
        except LeaseGone:
            return

    async def watch(self, prefix: str, start_revision: int) -> AsyncGenerator[int, None]:
        first, end = _range_of(prefix)
        request = pb.WatchRequest(
            create=pb.WatchCreateRequest(key=first, range_end=end, start_revision=start_revision)
        )
        place = self._current
        try:
            answers = self._caller.stream(self._endpoints[place], WATCH, request)
            async with aclosing(answers):
                async for answer in answers:
                    if answer.compact_revision:
                        raise WatchCompacted(f"etcd forgot what precedes {answer.compact_revision}")
                    if answer.canceled:
                        raise EtcdNoAnswer(f"etcd ended the watch: {answer.cancel_reason}")
                    if answer.events:
                        yield answer.events[-1].kv.mod_revision
        except EtcdNoAnswer:
            self._leave(place)
            raise
        raise EtcdNoAnswer(f"{self._endpoints[place]} ended the watch")

    async def close(self) -> None:
        await self._caller.close()

    # ---- endpoints ----

    async def _anywhere(self, call: Callable[[str], Awaitable[T]]) -> T:
        """Call the endpoints in turn until one answers; use it only for repeatable calls."""
        failure: EtcdNoAnswer | None = None
        for _ in self._endpoints:
            try:
                return await self._at(self._current, call)
            except EtcdNoAnswer as error:
                failure = error
        assert failure is not None
        raise failure

    async def _at(self, place: int, call: Callable[[str], Awaitable[T]]) -> T:
        try:
            return await call(self._endpoints[place])
        except EtcdNoAnswer:
            self._leave(place)
            raise

    def _leave(self, place: int) -> None:
        """Send the next calls to the endpoint after `place`, because that endpoint has failed."""
        if self._current == place:  # otherwise another call has left it already
            self._current = (place + 1) % len(self._endpoints)

    async def _unary(self, endpoint: str, method: Rpc[Q, R], request: Q) -> R:
        return await self._caller.call(endpoint, method, request, timeout_s=self._timeout_s)

    async def _keep_alive(self, endpoint: str, lease_id: int) -> pb.LeaseKeepAliveResponse:
        """Send one request on a stream, and return its answer."""
        request = pb.LeaseKeepAliveRequest(id=lease_id)
        try:
            async with (
                asyncio.timeout(self._timeout_s),
                aclosing(self._caller.stream(endpoint, KEEP_ALIVE, request)) as answers,
            ):
                async for answer in answers:
                    return answer
        except TimeoutError:
            raise EtcdNoAnswer(f"no answer from etcd at {endpoint}: timeout") from None
        raise EtcdNoAnswer(f"no answer from etcd at {endpoint}: it ended the stream")


def _error_of(endpoint: str, failure: CallFailed) -> EtcdError:
    details = f"etcd at {endpoint}: {failure.message or failure.status}"
    if failure.status == "NOT_FOUND":  # of what is requested here, only a lease can be missing
        return LeaseGone(details)
    return EtcdRefused(details) if failure.status in _REFUSALS else EtcdNoAnswer(details)


def _range_of(prefix: str) -> tuple[bytes, bytes]:
    """Return the first key of a prefix, and the first key after all of its keys."""
    first = prefix.encode()
    return first, first[:-1] + bytes((first[-1] + 1,))


def _compare(condition: Unchanged) -> pb.Compare:
    return pb.Compare(
        result=pb.Compare.EQUAL,
        target=pb.Compare.MOD_REVISION,
        key=condition.key.encode(),
        mod_revision=condition.mod_revision,
    )


def _operation(write: Write) -> pb.RequestOp:
    if isinstance(write, Delete):
        return pb.RequestOp(delete_range=pb.DeleteRangeRequest(key=write.key.encode()))
    put = pb.PutRequest(key=write.key.encode(), value=write.value, lease_id=write.lease_id)
    return pb.RequestOp(put=put)
