"""Handle the RPCs about one client: its settings, its threads, and its listener.

A command reaches only a client of this proxy, on its telemetry stream. The classic client calls
brokers by itself and does not take commands.
"""

from __future__ import annotations

from aerobee.broker.v1.client_pb2 import BROADCASTING, ClientInfo, ListClientsRequest
from aerobee.broker.v1.message_pb2 import Subscription
from aerobee.broker.v1.offset_pb2 import QueryConsumerOffsetsRequest
from aerobee.broker.v1.search_pb2 import SearchMessagesRequest
from aerobee_foreign.apache.rocketmq.v2 import admin_pb2 as pb
from aerobee_foreign.apache.rocketmq.v2 import service_pb2 as s
from aerobee_foreign.apache.rocketmq.v2.definition_pb2 import (
    Broker,
    Code,
    FilterExpression,
    FilterType,
    MessageQueue,
    Resource,
)

from aerobee_proxy.cluster.administration import Administration, latest
from aerobee_proxy.config import CurrentOptions
from aerobee_proxy.v2.admin.calls import Operator
from aerobee_proxy.v2.client_commands import ClientCommands
from aerobee_proxy.v2.resources import group_name, known_name, stored_name, topic_name
from aerobee_proxy.v2.sessions import Session, Sessions
from aerobee_proxy.v2.status import Refused, status
from aerobee_proxy.v2.translate import from_record, record_of
from aerobee_wire.rpcs import LIST_CLIENTS, QUERY_CONSUMER_OFFSETS


class ClientRpcs:
    """Codes of all: NOT_FOUND, UNSUPPORTED, REQUEST_TIMEOUT, PROXY_TIMEOUT, and the client's."""

    def __init__(
        self,
        administration: Administration,
        sessions: Sessions,
        commands: ClientCommands,
        options: CurrentOptions,
    ) -> None:
        self._administration = administration
        self._sessions = sessions
        self._commands = commands
        self._options = options

    async def print_thread_stack_trace(
        self, request: pb.PrintThreadStackTraceRequest, operator: Operator
    ) -> pb.PrintThreadStackTraceResponse:
        """Return the stacks of the threads of a client, as its SDK writes them."""
        session = await self._member(request.client_id, request.group)
        answer = await self._commands.ask(
            session,
            lambda nonce: s.TelemetryCommand(
                print_thread_stack_trace_command=s.PrintThreadStackTraceCommand(nonce=nonce)
            ),
        )
        found = answer.thread_stack_trace
        return pb.PrintThreadStackTraceResponse(
            status=answer.status if answer.HasField("status") else status(),
            thread_stack_trace=found.thread_stack_trace,
        )

    async def verify_message(
        self, request: pb.VerifyMessageRequest, operator: Operator
    ) -> pb.VerifyMessageResponse:
        """Let the listener of a client consume a stored message, and return how that ended.

        No offset and no lease changes.
        """
        topic = topic_name(request.topic)
        session = await self._member(request.client_id, request.group)
        wanted = SearchMessagesRequest(topic=topic, key=request.message_id)
        brokers = await self._administration.brokers_of(topic)
        page = await self._administration.search(wanted, dict.fromkeys(brokers, ()), 1)
        if not page.messages:
            raise Refused(
                Code.MESSAGE_NOT_FOUND,
                f"topic {topic!r} has no message {request.message_id[:64]!r}",
            )
        message = from_record(
            record_of(page.messages[0]),
            namespace=request.topic.resource_namespace,
            max_body_size=self._options().max_message_size,
        )
        operator.did("message_verified", client_id=session.client_id, topic=topic)
        answer = await self._commands.ask(
            session,
            lambda nonce: s.TelemetryCommand(
                verify_message_command=s.VerifyMessageCommand(nonce=nonce, message=message)
            ),
        )
        return pb.VerifyMessageResponse(
            status=answer.status if answer.HasField("status") else status()
        )

    async def get_consumer_running_info(
        self, request: pb.GetConsumerRunningInfoRequest, operator: Operator
    ) -> pb.GetConsumerRunningInfoResponse:
        """Return what brokers know of a client: its settings, and the queues that it pulls.

        What only the client knows, such as its cache and its consumption times, is left out.
        """
        group = group_name(request.group)
        space = request.group.resource_namespace
        answers = await self._administration.ask_all(LIST_CLIENTS, ListClientsRequest(group=group))
        seen = {
            broker: client
            for broker, answer in answers.items()
            for client in answer.clients
            if client.client_id == request.client_id
        }
        if not seen:
            raise _unknown(request.client_id, group)
        (client,) = latest(seen.values())
        offsets = await self._administration.ask(
            seen, QUERY_CONSUMER_OFFSETS, QueryConsumerOffsetsRequest(consumer_group=group)
        )
        queues = []
        for broker, at_broker in seen.items():
            committed = {
                (each.topic, each.queue_id): each.queue_offset for each in offsets[broker].offsets
            }
            for queue in at_broker.queues:
                if queue.consumer_group != group:
                    continue
                state = pb.ProcessQueueInfo(locked=queue.locked)
                if (queue.topic, queue.queue_id) in committed:
                    state.commit_offset = committed[queue.topic, queue.queue_id]
                queues.append(
                    pb.MessageQueueItem(
                        message_queue=MessageQueue(
                            topic=resource(queue.topic, space),
                            id=queue.queue_id,
                            broker=Broker(name=broker),
                        ),
                        process_queue_info=state,
                    )
                )
        info = pb.ConsumerRunningInfo(
            properties={name: text for name, text in _properties(client).items() if text},
            subscriptions={
                known_name(each.topic, space)[1]: expression_of(each)
                for consumer in client.consumers
                if consumer.consumer_group == group
                for each in consumer.subscriptions
            },
            message_queue_table=queues,
        )
        return pb.GetConsumerRunningInfoResponse(status=status(), consumer_running_info=info)

    async def _member(self, client_id: str, group: Resource) -> Session:
        """Return the session of a member of a group.

        Raises Refused if the client is not a member, or not a client of this proxy. So a right on
        one group does not reach the clients of another one.
        """
        name = group_name(group)
        for session in self._sessions:
            if session.client_id == client_id and session.consumer_group == name:
                return session
        for client in await self._administration.clients(name):
            if client.client_id != client_id:
                continue
            if client.proxy:
                raise Refused(
                    Code.NOT_FOUND,
                    f"client {client_id!r} is connected to proxy {client.proxy}: call the "
                    "administration port of that proxy",
                )
            raise Refused(
                Code.UNSUPPORTED,
                f"client {client_id!r} calls brokers by itself: only clients of a proxy take "
                "commands",
            )
        raise _unknown(client_id, name)


def _unknown(client_id: str, group: str) -> Refused:
    return Refused(
        Code.NOT_FOUND, f"group {group!r} has no live client {client_id[:64]!r}: list its clients"
    )


def _properties(client: ClientInfo) -> dict[str, str]:
    return {
        "clientId": client.client_id,
        "clientVersion": client.version,
        "language": client.language,
        "address": client.address,
        "proxy": client.proxy,
        "user": client.user,
        "lastHeartbeat": str(client.last_update_timestamp_ms),
    }


def described(client: ClientInfo, group: str, *, lite: bool = False) -> pb.ClientInfo:
    """Return a client for an answer, as a member of a group."""
    models = [each.message_model for each in client.consumers if each.consumer_group == group]
    broadcasts = BROADCASTING in models
    model = pb.MessageModel.BROADCASTING if broadcasts else pb.MessageModel.CLUSTERING
    return pb.ClientInfo(
        client_id=client.client_id,
        version=client.version,
        language=client.language.upper(),
        # SDKs begin their client ids with the name or the address of their host.
        hostname=client.client_id.partition("@")[0],
        egress_ip=client.address.rpartition(":")[0].strip("[]"),
        message_model=pb.MessageModel.LITE_SELECTIVE if lite else model,
    )


def expression_of(subscription: Subscription) -> FilterExpression:
    """Return the filter of a broker's subscription for an answer."""
    sql = subscription.expression_type == Subscription.SQL92
    return FilterExpression(
        type=FilterType.SQL if sql else FilterType.TAG, expression=subscription.expression
    )


def resource(stored: str, namespace: str) -> Resource:
    """Return a stored name for an answer to a caller that uses this namespace."""
    space, name = known_name(stored, namespace)
    if stored_name(Resource(resource_namespace=space, name=name)) != stored:
        space = ""  # a resource outside of the namespace
    return Resource(resource_namespace=space, name=name)
