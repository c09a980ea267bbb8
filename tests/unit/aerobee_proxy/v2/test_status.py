"""How failures reach a client."""

from __future__ import annotations

import pytest
from apache.rocketmq.v2.definition_pb2 import Code

from aerobee_proxy.v2.status import TRANSLATION, Refused, overall, status, status_of
from aerobee_wire.status import Code as BrokerCode
from aerobee_wire.status import MqError


@pytest.mark.parametrize("code", BrokerCode)
def test_every_code_of_a_broker_has_one_of_the_public_protocol(code: BrokerCode) -> None:
    assert code in TRANSLATION
    told = status_of(MqError(code, "what is wrong"))
    assert told is not None
    assert (told.code, told.message) == (TRANSLATION[code], "what is wrong")


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (BrokerCode.SYSTEM_BUSY, Code.TOO_MANY_REQUESTS),
        (BrokerCode.SUBSCRIPTION_GROUP_NOT_EXIST, Code.CONSUMER_GROUP_NOT_FOUND),
        (BrokerCode.TOPIC_NOT_EXIST, Code.TOPIC_NOT_FOUND),
        (BrokerCode.REQUEST_TIMEOUT, Code.PROXY_TIMEOUT),
        (BrokerCode.FLUSH_DISK_TIMEOUT, Code.MASTER_PERSISTENCE_TIMEOUT),
        (BrokerCode.FLUSH_SLAVE_TIMEOUT, Code.SLAVE_PERSISTENCE_TIMEOUT),
        (BrokerCode.SLAVE_NOT_AVAILABLE, Code.HA_NOT_AVAILABLE),
    ],
)
def test_failures_behind_the_proxy_are_told_as_the_reference_does(
    code: BrokerCode, expected: Code
) -> None:
    """Facts of the request pipeline: the table of failures inside."""
    assert TRANSLATION[code] == expected


def test_refusal_keeps_code_and_sentence() -> None:
    told = status_of(Refused(Code.ILLEGAL_TOPIC, "no such name"))
    assert told is not None
    assert (told.code, told.message) == (Code.ILLEGAL_TOPIC, "no such name")


def test_defect_is_not_told() -> None:
    assert status_of(ZeroDivisionError("a secret detail")) is None


def test_message_defaults_to_the_name_of_the_code() -> None:
    assert status().message == "OK"
    assert status(Code.TOPIC_NOT_FOUND).message == "TOPIC_NOT_FOUND"


def test_overall_status_is_the_common_one() -> None:
    bad = status(Code.INVALID_RECEIPT_HANDLE, "expired")
    assert overall([status(), status()]).code == Code.OK
    assert overall([bad, bad]) == bad


def test_overall_status_of_different_entries_is_multiple_results() -> None:
    assert overall([status(), status(Code.INVALID_RECEIPT_HANDLE)]).code == Code.MULTIPLE_RESULTS


def test_overall_status_without_entries_is_an_error() -> None:
    assert overall([]).code == Code.INTERNAL_SERVER_ERROR
