"""The services under the fuzzer: each a process, with a good client and a view of its tables.

The good client uses names that no bad request has: whatever these change, its own topic, group,
broker and user must stay as they are.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import grpc
from aerobee.access.v1 import access_pb2
from aerobee.broker.v1 import (
    admin_pb2,
    client_pb2,
    config_pb2,
    dead_letter_pb2,
    lite_pb2,
    message_pb2,
    offset_pb2,
    pop_pb2,
    replica_pb2,
    replication_pb2,
    search_pb2,
    transaction_pb2,
)
from aerobee.namesrv.v1 import namesrv_pb2
from aerobee_foreign.apache.rocketmq.v2 import definition_pb2 as d
from aerobee_foreign.apache.rocketmq.v2 import service_pb2 as s
from google.protobuf import message_factory
from google.protobuf.descriptor import MethodDescriptor

from aerobee_wire import rpcs
from aerobee_wire.rpcs import Rpc
from fuzz import contract
from fuzz.calls import Metadata
from fuzz.requests import FuzzedRpc, rpcs_of
from support.clock.polling import until_sync
from support.processes.service import (
    METRICS,
    ServiceProcess,
    broker_process,
    namesrv_process,
    proxy_process,
)
from support.proxy import public_codes
from support.proxy.client import signed

REPLICATED = ("--set=totalReplicas=2", "--set=minInSyncReplicas=1", "--set=inSyncReplicas=1")
# A newer epoch that a replica reports ends the role of a master, as the contract says.
DEPOSING = frozenset({"Follow"})
GUARD = "guarded"  # the topic, group, broker and user of the good client
CLUSTER = "DefaultCluster"
TIMEOUT_S = 60.0
DAY_MS = 86_400_000
USERS = {"users": [{"username": "alice", "password": "secret-alice-1"}]}
BROKER_FILES = (
    *(admin_pb2, client_pb2, config_pb2, dead_letter_pb2, lite_pb2, message_pb2),
    *(offset_pb2, pop_pb2, replica_pb2, search_pb2, transaction_pb2, replication_pb2),
)


class Target(Protocol):
    """A service under the fuzzer."""

    name: str
    process: ServiceProcess
    rpcs: list[FuzzedRpc]
    # RPCs that change whether or how the whole service works. They are called one at a time, and
    # `restore` sets the service back.
    alone: list[FuzzedRpc]

    def use(self) -> None:
        """Call as a good client does. Raises AssertionError or RpcError."""

    def prepare(self) -> None:
        """Create what requests are about: some of them delete it."""

    def close(self) -> None: ...

    def restore(self) -> None:
        """Set options back that a request may have changed, and prepare."""

    def tables(self) -> object:
        """Return everything that a change could change."""

    def read(self, rpc: FuzzedRpc, answer: bytes) -> str:
        """Return the code in an answer, or ""."""

    def metadata(self, chance: random.Random) -> Metadata: ...


def listed(method: MethodDescriptor) -> frozenset[str]:
    """Return the codes that the contract lists for an RPC of Aerobee's own."""
    service, file = method.containing_service, method.containing_service.file
    return contract.codes(file.name)[f"{service.name}/{method.name}"]


class _Connection:
    """Calls of a good client, over a connection of its own."""

    def __init__(self, address: str) -> None:
        self._channel = grpc.insecure_channel(
            address, options=(("grpc.use_local_subchannel_pool", 1),)
        )

    def call(self, rpc: Rpc[Any, Any], **fields: Any) -> Any:
        method = self._channel.unary_unary(
            rpc.path, rpc.request.SerializeToString, rpc.response.FromString
        )
        return method(rpc.request(**fields), timeout=TIMEOUT_S)

    def close(self) -> None:
        self._channel.close()


class Namesrv:
    name = "namesrv"

    def __init__(self, process: ServiceProcess) -> None:
        self.process = process
        services = [namesrv_pb2.DESCRIPTOR.services_by_name["NamesrvService"]]
        services.append(access_pb2.DESCRIPTOR.services_by_name["NamesrvAccessService"])
        alone = {"UpdateRuntimeConfig"}
        found = list(rpcs_of(services, listed))
        self.rpcs = [each for each in found if each.name not in alone]
        self.alone = [each for each in found if each.name in alone]
        self._connection = _Connection(process.address)
        self.restore()

    def prepare(self) -> None:
        self.restore()

    def restore(self) -> None:
        topics = [
            namesrv_pb2.TopicConfig(
                topic=name, read_queue_count=4, write_queue_count=4, permission=6
            )
            for name in (GUARD, f"{GUARD}-2")
        ]
        self._connection.call(
            rpcs.REGISTER_BROKER,
            cluster=CLUSTER,
            broker_name=GUARD,
            broker_address="127.0.0.1:1",
            topics=topics,
            data_version=namesrv_pb2.DataVersion(state_version=1, timestamp_ms=1, counter=1),
            heartbeat_timeout_ms=DAY_MS,
        )

    def use(self) -> None:
        route = self._connection.call(rpcs.GET_TOPIC_ROUTE, topic=GUARD).route
        assert [each.broker_name for each in route.brokers] == [GUARD], route

    def tables(self) -> object:
        call = self._connection.call
        topics = sorted(call(rpcs.LIST_TOPIC_ROUTES).topics)
        return topics, _access(call, rpcs.NAMESRV_ACCESS)

    def close(self) -> None:
        self._connection.close()

    def read(self, _rpc: FuzzedRpc, _answer: bytes) -> str:
        return ""

    def metadata(self, _chance: random.Random) -> Metadata:
        return ()


class Broker:
    name = "broker"

    def __init__(self, process: ServiceProcess) -> None:
        self.process = process
        services = [
            service
            for file in BROKER_FILES
            for service in file.DESCRIPTOR.services_by_name.values()
            if not service.name.startswith("Proxy")  # a proxy serves it
        ]
        services.append(access_pb2.DESCRIPTOR.services_by_name["BrokerAccessService"])
        alone = {"UpdateConfig", "SetDraining", "Promote", "HandOver"}
        found = [each for each in rpcs_of(services, listed) if each.name not in DEPOSING]
        self.rpcs = [each for each in found if each.name not in alone]
        self.alone = [each for each in found if each.name in alone]
        self._connection = _Connection(process.address)
        self._sent = itertools.count()
        options = self._connection.call(rpcs.GET_CONFIG).options
        self._keys = [option.key for option in options if option.changeable]
        until_sync(self._is_master, timeout_s=TIMEOUT_S)
        self._put(GUARD)
        self.restore()

    def _is_master(self) -> bool:
        try:
            self._connection.call(rpcs.SET_DRAINING, draining=False)
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.UNAVAILABLE:
                return False
            raise
        return True

    def _put(self, topic: str, group: str = GUARD) -> None:
        call = self._connection.call
        config = namesrv_pb2.TopicConfig(
            topic=topic, read_queue_count=2, write_queue_count=2, permission=6
        )
        call(rpcs.PUT_TOPIC, topic=config)
        call(rpcs.PUT_GROUP, group=admin_pb2.GroupConfig(consumer_group=group, consume_enable=True))

    def restore(self) -> None:
        self._connection.call(rpcs.UPDATE_CONFIG, unset=self._keys)
        self._connection.call(rpcs.SET_DRAINING, draining=False)
        self.prepare()

    def prepare(self) -> None:
        self._put("orders", "billing")
        self._put("payments", "orderly")

    def use(self) -> None:
        call = self._connection.call
        body = b"guarded %d" % next(self._sent)
        message = message_pb2.Message(topic=GUARD, body=body, queue_id=0)
        (sent,) = call(rpcs.SEND, messages=[message]).results
        pulled = call(
            rpcs.PULL,
            consumer_group=GUARD,
            topic=GUARD,
            queue_id=0,
            queue_offset=sent.queue_offset,
            max_messages=1,
            subscription=message_pb2.Subscription(topic=GUARD, expression="*"),
        )
        assert body in pulled.records, "the message that was sent is missing"

    def tables(self) -> object:
        call = self._connection.call
        topics = [str(each) for each in call(rpcs.LIST_TOPICS).topics]
        groups = [str(each) for each in call(rpcs.LIST_GROUPS).groups]
        options = [str(each) for each in call(rpcs.GET_CONFIG).options]
        return topics, groups, options, _access(call, rpcs.BROKER_ACCESS)

    def close(self) -> None:
        self._connection.close()

    def read(self, _rpc: FuzzedRpc, _answer: bytes) -> str:
        return ""

    def metadata(self, _chance: random.Random) -> Metadata:
        return ()


class Proxy:
    """A proxy that checks signatures. Its tables are those of its broker."""

    name = "proxy"

    def __init__(self, process: ServiceProcess, broker: Broker) -> None:
        self.process, self._broker = process, broker
        service = s.DESCRIPTOR.services_by_name["MessagingService"]
        self.rpcs = list(rpcs_of([service], lambda method: public_codes.names(method.name)))
        self.alone: list[FuzzedRpc] = []
        self._answers = {
            method.name: message_factory.GetMessageClass(method.output_type)
            for method in service.methods
        }
        self._channel = grpc.insecure_channel(
            process.address, options=(("grpc.use_local_subchannel_pool", 1),)
        )
        self._good = signed("alice", "secret-alice-1")
        self._sent = itertools.count()

    def use(self) -> None:
        system = d.SystemProperties(message_id=f"{next(self._sent):032X}")
        message = d.Message(topic=d.Resource(name=GUARD), body=b"guarded", system_properties=system)
        send = self._channel.unary_unary(
            "/apache.rocketmq.v2.MessagingService/SendMessage",
            s.SendMessageRequest.SerializeToString,
            s.SendMessageResponse.FromString,
        )
        answer = send(
            s.SendMessageRequest(messages=[message]), metadata=self._good, timeout=TIMEOUT_S
        )
        assert answer.status.code == d.Code.OK, answer.status

    def prepare(self) -> None:
        self._broker.prepare()

    def restore(self) -> None:
        self._broker.restore()

    def tables(self) -> object:
        return self._broker.tables()

    def close(self) -> None:
        self._channel.close()

    def read(self, rpc: FuzzedRpc, answer: bytes) -> str:
        response: Any = self._answers[rpc.name].FromString(answer)
        return str(d.Code.Name(response.status.code))

    def metadata(self, chance: random.Random) -> Metadata:
        """Return good credentials, or ones with one header changed."""
        if chance.random() < 0.8:
            return self._good
        headers = dict(self._good)
        name = chance.choice(sorted(headers))
        value = headers[name]
        at = chance.randrange(len(value) + 1)
        headers[name] = chance.choice(
            (
                "",
                value[:at],
                value + value,
                value[:at] + "=" + value[at:],
                value.replace(",", ""),
                "x" * 2_000,
                value.upper(),
                "MQv2-HMAC-SHA1 Credential=,",
                value.replace("alice", "é"),
            )
        )
        headers[name] = headers[name].encode("ascii", "replace").decode()
        if chance.random() < 0.3:
            del headers[name]
        return tuple(headers.items())


def _access(call: Any, access: rpcs.AccessRpcs) -> tuple[str, ...]:
    return str(call(access.list_table)), str(call(access.list_quotas))


@contextlib.contextmanager
def running(folder: Path) -> Iterator[dict[str, Target]]:
    """Run the three services until the block ends."""
    users = folder / "users.json"
    users.write_text(json.dumps(USERS))
    with contextlib.ExitStack() as stack:
        enter = stack.enter_context
        namesrv = enter(namesrv_process(folder / "fuzzed-namesrv", *METRICS))
        routes = enter(namesrv_process(folder / "namesrv"))
        broker = enter(
            broker_process(folder / "broker", *METRICS, *REPLICATED, namesrv=routes.address)
        )
        checks = ("authenticationEnabled=true", f"authenticationUsersFile={users}")
        options = [f"--set={each}" for each in checks]
        proxy = enter(proxy_process(routes.address, *METRICS, *options))
        fuzzed_broker = Broker(broker)
        targets: tuple[Target, ...] = (
            Namesrv(namesrv),
            fuzzed_broker,
            Proxy(proxy, fuzzed_broker),
        )
        for target in targets:
            stack.callback(target.close)
        yield {target.name: target for target in targets}
