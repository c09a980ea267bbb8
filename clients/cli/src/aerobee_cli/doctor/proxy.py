"""Request the routes that an official SDK would get from a proxy, and test their addresses."""

from __future__ import annotations

import asyncio
import hmac
import socket
import ssl
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from aerobee_cli.doctor.checks import Finding
from aerobee_cli.doctor.cluster import Diagnosis
from aerobee_cli.errors import CommandError
from aerobee_cli.output import counted
from aerobee_wire.status import Code, MqError

if TYPE_CHECKING:
    from aerobee_foreign.apache.rocketmq.v2.service_pb2 import QueryRouteResponse

    from aerobee_client import Credentials, Tls

TIMEOUT_S = 5.0
CLIENT_ID = f"{socket.gethostname()}@aerobee-doctor"
# OpenSSL's X509_V_ERR_HOSTNAME_MISMATCH and X509_V_ERR_IP_ADDRESS_MISMATCH.
OTHER_NAME = (62, 64)


def is_namesrv(address: str) -> bool:
    """Return whether the service at `address` is a name server.

    Over TLS, a service without a name server's certificate is not one. Raises MqError if none
    answers.
    """
    from aerobee_client import AdminClient, NamesrvUnreachable, Tls

    with AdminClient(address) as admin:
        try:
            admin.cluster()
        except NamesrvUnreachable:
            if Tls.from_environment() is None:
                raise
            return False
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

    TLS and the user who signs are those of the environment. Raises CommandError if the proxy does
    not answer or refuses the calls.
    """
    from aerobee_foreign.apache.rocketmq.v2 import definition_pb2 as d

    from aerobee_client import Credentials, Tls
    from aerobee_http2.tls import client_context
    from aerobee_wire.certificates import Pem

    tls, credentials = Tls.from_environment(), Credentials.from_environment()
    host, _, port = address.rpartition(":")
    found, targets = Diagnosis(), set[tuple[str, int]]()
    name = ""
    if tls is not None and (problem := _other_name(host.strip("[]"), int(port), tls)):
        name = f"proxy.{tls.cluster}.aerobee"
        found.findings.append(
            Finding(
                "certificate",
                address,
                f"SDKs that verify certificates do not accept the one of this proxy: {problem}",
                "give `aerobee certs` the --hosts under which clients connect to proxies",
            )
        )
    context = None if tls is None else client_context(Pem(Path(tls.ca).read_bytes(), b"", b""))
    answers = asyncio.run(_answers(address, context, name, credentials, topics))
    for topic, answer in zip(topics, answers, strict=True):
        if answer.status.code == d.Code.UNAUTHORIZED:
            advice = "" if credentials else ": give --access-key, or a --context with a user"
            raise CommandError(
                f"the proxy at {address} refuses this call ({answer.status.message}){advice}"
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


def _other_name(host: str, port: int, tls: Tls) -> str:
    """Return why the certificate is not one of this host, or "" if it is.

    Raises CommandError if clients do not accept it under any name.
    """
    try:
        context = ssl.create_default_context(cafile=tls.ca)
        context.set_alpn_protocols(["h2"])
        with socket.create_connection((host, port), TIMEOUT_S) as connection:
            context.wrap_socket(connection, server_hostname=host).close()
    except ssl.SSLCertVerificationError as error:
        if error.verify_code in OTHER_NAME:
            return str(error.verify_message)
        raise CommandError(
            f"the certificate of {host}:{port} is not accepted: {error.verify_message}"
        ) from None
    except OSError as error:
        raise CommandError(f"no proxy answers over TLS at {host}:{port}: {error}") from None
    return ""


async def _answers(
    address: str,
    tls: ssl.SSLContext | None,
    name: str,
    credentials: Credentials | None,
    topics: Sequence[str],
) -> list[QueryRouteResponse]:
    """Request the route of each topic as an SDK does: without a certificate of the client.

    `name` is the name that the certificate of the proxy must have in place of its host. Raises
    CommandError if the proxy does not answer.
    """
    from aerobee_foreign.apache.rocketmq.v2 import definition_pb2 as d
    from aerobee_foreign.apache.rocketmq.v2 import service_pb2 as s

    from aerobee_http2.calls import CallFailed
    from aerobee_http2.channel import Channel
    from aerobee_wire.rpcs import rpc

    query = rpc(s.QueryRouteRequest, s.QueryRouteResponse)
    host, _, port = address.rpartition(":")
    endpoints = d.Endpoints(
        scheme=d.AddressScheme.DOMAIN_NAME,
        addresses=[d.Address(host=host.strip("[]"), port=int(port))],
    )
    channel = Channel(address, tls, name)
    answers = []
    try:
        for topic in topics:
            request = s.QueryRouteRequest(topic=d.Resource(name=topic), endpoints=endpoints)
            answer = await channel.unary(
                query.path, request.SerializeToString(), TIMEOUT_S, _metadata(credentials)
            )
            answers.append(s.QueryRouteResponse.FromString(answer))
    except CallFailed as failure:
        if failure.status == "UNIMPLEMENTED":
            raise CommandError(
                f"{address} is not the port of a proxy for SDKs, which is 8081 by default, nor a "
                "name server"
            ) from None
        raise CommandError(f"no proxy answers at {address}: {failure.details}") from None
    finally:
        await channel.close(None)
    return answers


def _metadata(credentials: Credentials | None) -> tuple[tuple[str, str], ...]:
    """Return the metadata of a call as an SDK signs it: the signature covers the time alone."""
    client = (("x-mq-client-id", CLIENT_ID),)
    if credentials is None:
        return client
    date = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    secret = Path(credentials.secret_key_file).read_bytes().rstrip(b"\r\n")
    digest = hmac.digest(secret, date.encode(), "sha1").hex().upper()
    header = (
        f"MQv2-HMAC-SHA1 Credential={credentials.access_key}, SignedHeaders=x-mq-date-time, "
        f"Signature={digest}"
    )
    return (*client, ("x-mq-date-time", date), ("authorization", header))


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
