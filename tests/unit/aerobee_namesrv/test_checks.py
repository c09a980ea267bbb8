"""Whether a request is well-formed, field by field."""

from __future__ import annotations

import pytest
from aerobee.namesrv.v1 import namesrv_pb2 as pb

from aerobee_namesrv.rpc import convert
from aerobee_wire.status import Code
from support.codes import raises_code


def request(**fields: object) -> pb.RegisterBrokerRequest:
    return pb.RegisterBrokerRequest(
        **{
            "cluster": "c",
            "broker_name": "b",
            "broker_id": 0,
            "broker_address": "10.0.0.1:10911",
            **fields,
        }  # type: ignore[arg-type]
    )


@pytest.mark.parametrize(
    "address", ["10.0.0.1:1", "broker-a.svc_x:65535", "[::1]:10911", "[fe80::1%eth0]:10911"]
)
def test_address_is_a_host_and_a_port(address: str) -> None:
    assert convert.registration(request(broker_address=address)).address == address


@pytest.mark.parametrize(
    "address", ["", "10.0.0.1", "10.0.0.1:0", "10.0.0.1:65536", ":1", "a b:1", "::1:1", "h:1\n"]
)
@pytest.mark.parametrize("field", ["broker_address", "ha_server_address"])
def test_what_cannot_be_dialled_is_refused(field: str, address: str) -> None:
    if field == "ha_server_address" and not address:
        return
    with raises_code(Code.INVALID_PARAMETER, field):
        convert.registration(request(**{field: address}))


@pytest.mark.parametrize(
    ("fields", "about"),
    [
        ({"cluster": ""}, "cluster"),
        ({"broker_name": "  "}, "broker_name"),
        ({"broker_name": "b" * 256}, "broker_name"),
        ({"broker_id": -1}, "broker_id"),
        ({"heartbeat_timeout_ms": -1}, "heartbeat_timeout_ms"),
        ({"topics": [pb.TopicConfig(topic="")]}, "topics.topic"),
        ({"topics": [pb.TopicConfig(topic="t", permission=16)]}, "topics.permission"),
        ({"topics": [pb.TopicConfig(topic="t", read_queue_count=-1)]}, "topics.read_queue_count"),
        ({"topics": [pb.TopicConfig(topic="t", write_queue_count=-1)]}, "topics.write_queue_count"),
    ],
)
def test_bad_registration_names_the_field(fields: dict[str, object], about: str) -> None:
    with raises_code(Code.INVALID_PARAMETER, about):
        convert.registration(request(**fields))


def test_absent_is_distinguished_from_empty() -> None:
    """What the contract says of enable_acting_master, filter_servers, heartbeat_timeout_ms."""
    absent = convert.registration(request())
    assert (absent.enable_acting_master, absent.filter_servers) == (None, None)
    assert absent.heartbeat_timeout_ms == 120_000
    present = convert.registration(
        request(enable_acting_master=False, filter_servers=pb.FilterServers())
    )
    assert (present.enable_acting_master, present.filter_servers) == (False, ())
