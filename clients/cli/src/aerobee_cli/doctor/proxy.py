"""Request the routes that an official SDK would get from a proxy, and test their addresses."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import TYPE_CHECKING

from aerobee_cli.doctor.checks import Finding
from aerobee_cli.doctor.cluster import Diagnosis
from aerobee_cli.errors import CommandError
from aerobee_cli.output import counted
from aerobee_wire.status import Code, MqError

if TYPE_CHECKING:
    from aerobee_foreign.apache.rocketmq.v2.service_pb2 import QueryRouteResponse

TIMEOUT_S = 5.0
CLIENT_ID = f"{socket.gethostname()}@aerobee-doctor"


def is_namesrv(address: str) -> bool:
    """Return whether the service at `address` is a name server. Raises MqError if none answers."""
    from aerobee_client import AdminClient

    with AdminClient(address) as admin:
        try:
            admin.cluster()
        except MqError as error:
            if error.code is not Code.REQUEST_CODE_NOT_SUPPORTED:
                raise
            return False
    return True


def known_topics(namesrvs: Sequence[str]) -> list[str]:
    """Return the topics that a name server knows.

    Raises CommandError if no name server answers, or if there are no topics.
    """
    from aerobee_client import AdminClient

    with AdminClient(namesrvs) as admin:
        try:
            found = admin.topic_names()
        except MqError as error:
            raise CommandError(f"{error}; or name what to ask for with --topic") from None
    if not found:
        raise CommandError("there is no topic that a client could ask for: create one")
    return found


def diagnose(address: str, topics: Sequence[str]) -> Diagnosis:
    """Check the routes of `topics`, which must exist because a proxy may create missing ones.

    Raises CommandError if the proxy does not answer or refuses the calls.
    """
    import grpc
    from aerobee_foreign.apache.rocketmq.v2 import definition_pb2 as d
    from aerobee_foreign.apache.rocketmq.v2 import service_pb2 as s
    from aerobee_foreign.apache.rocketmq.v2 import service_pb2_grpc

    host, _, port = address.rpartition(":")
    endpoints = d.Endpoints(
        scheme=d.AddressScheme.DOMAIN_NAME,
        addresses=[d.Address(host=host.strip("[]"), port=int(port))],
    )
    found, targets = Diagnosis(), set[tuple[str, int]]()
    with grpc.insecure_channel(address, (("grpc.enable_http_proxy", 0),)) as channel:
        stub = service_pb2_grpc.MessagingServiceStub(channel)
        for topic in topics:
            request = s.QueryRouteRequest(topic=d.Resource(name=topic), endpoints=endpoints)
            metadata = (("x-mq-client-id", CLIENT_ID),)
            try:
                answer = stub.QueryRoute(request, metadata=metadata, timeout=TIMEOUT_S)
            except grpc.RpcError as error:
                raise CommandError(f"no proxy answers at {address}: {error.details()}") from None
            if answer.status.code == d.Code.UNAUTHORIZED:
                raise CommandError(
                    f"the proxy at {address} answers signed calls only: {answer.status.message}"
                )
            found.findings += _of_answer(topic, answer)
            targets |= {
                (each.host, each.port)
                for queue in answer.message_queues
                for each in queue.broker.endpoints.addresses
            }
    found.looked_at += [
        counted(len(topics), "topic"),
        f"addresses that clients get: {len(targets)}",
    ]
    for target in sorted(targets):
        problem = _unreachable(*target)
        if problem:
            found.findings.append(
                Finding(
                    "route",
                    f"{target[0]}:{target[1]}",
                    f"a client that dials {address} is sent there, and from here: {problem}",
                    "set advertisedEndpoints of the proxy, or useEndpointPortFromRequest=true",
                )
            )
    return found


def _of_answer(topic: str, answer: QueryRouteResponse) -> list[Finding]:
    from aerobee_foreign.apache.rocketmq.v2 import definition_pb2 as d

    if answer.status.code != d.Code.OK:
        name = d.Code.Name(answer.status.code)
        problem = f"clients get {name}: {answer.status.message}"
        advice = "check the proxy's namesrvAddr, and that the brokers of the topic run"
        return [Finding("route", topic, problem, advice)]
    writable = (d.Permission.WRITE, d.Permission.READ_WRITE)
    if not any(queue.permission in writable for queue in answer.message_queues):
        problem = "no queue takes messages"
        return [Finding("route", topic, problem, "aerobee topic update, or undo a drain")]
    return []


def _unreachable(host: str, port: int) -> str:
    """Return the reason why a connection fails, or "" if it succeeds."""
    try:
        socket.create_connection((host, port), TIMEOUT_S).close()
    except OSError as error:
        return str(error)
    return ""
