"""The status that a client gets for each failure."""

from __future__ import annotations

import pytest
import structlog
from aerobee_foreign.apache.rocketmq.v2.definition_pb2 import Code

from aerobee_proxy.v2.status import TRANSLATION, Refused, named, overall, status, status_for
from aerobee_wire.status import Code as BrokerCode
from aerobee_wire.status import MqError


@pytest.mark.parametrize("code", BrokerCode)
def test_every_broker_code_has_a_public_code(code: BrokerCode) -> None:
    found = status_for("rpc", MqError(code, "what is wrong"))
    assert (found.code, found.message) == (TRANSLATION[code], "what is wrong")


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (BrokerCode.SYSTEM_BUSY, Code.TOO_MANY_REQUESTS),
        (BrokerCode.POLLING_FULL, Code.TOO_MANY_REQUESTS),
        (BrokerCode.NO_PERMISSION, Code.FORBIDDEN),
        (BrokerCode.SUBSCRIPTION_PARSE_FAILED, Code.ILLEGAL_FILTER_EXPRESSION),
        (BrokerCode.SUBSCRIPTION_GROUP_NOT_EXIST, Code.CONSUMER_GROUP_NOT_FOUND),
        (BrokerCode.TOPIC_NOT_EXIST, Code.TOPIC_NOT_FOUND),
        (BrokerCode.REQUEST_TIMEOUT, Code.PROXY_TIMEOUT),
        (BrokerCode.FLUSH_DISK_TIMEOUT, Code.MASTER_PERSISTENCE_TIMEOUT),
        (BrokerCode.FLUSH_SLAVE_TIMEOUT, Code.SLAVE_PERSISTENCE_TIMEOUT),
        (BrokerCode.SLAVE_NOT_AVAILABLE, Code.HA_NOT_AVAILABLE),
        (BrokerCode.DISK_FULL, Code.HA_NOT_AVAILABLE),  # ours: another broker may have room
        (BrokerCode.SERVICE_NOT_AVAILABLE, Code.HA_NOT_AVAILABLE),
    ],
)
def test_public_code_of_a_broker_s_code(code: BrokerCode, expected: Code) -> None:
    assert TRANSLATION[code] == expected


def test_refusal_keeps_code_and_message() -> None:
    found = status_for("rpc", Refused(Code.ILLEGAL_TOPIC, "no such name"))
    assert (found.code, found.message) == (Code.ILLEGAL_TOPIC, "no such name")


def test_defect_is_logged_and_its_status_has_no_details() -> None:
    with structlog.testing.capture_logs() as logs:
        found = status_for("query_route", ZeroDivisionError("a secret detail"))
    assert found.code == Code.INTERNAL_SERVER_ERROR and "secret" not in found.message
    assert [(line["event"], line["rpc"]) for line in logs] == [("rpc_failed", "query_route")]


def test_default_message_is_the_name_of_the_code() -> None:
    assert status().message == "OK"
    assert status(Code.TOPIC_NOT_FOUND).message == "TOPIC_NOT_FOUND"


def test_overall_status_of_equal_entries() -> None:
    bad = status(Code.INVALID_RECEIPT_HANDLE, "expired")
    assert overall([status(), status()]).code == Code.OK
    found = overall([bad, bad])
    assert (found.code, found.message) == (bad.code, "INVALID_RECEIPT_HANDLE: expired")


def test_overall_status_of_different_entries() -> None:
    found = overall([status(), status(Code.INVALID_RECEIPT_HANDLE)])
    assert found.code == Code.MULTIPLE_RESULTS and found.message.startswith("MULTIPLE_RESULTS")


def test_named_status_begins_with_its_code() -> None:
    assert named(status()) == status()
    assert named(status(Code.FORBIDDEN)).message == "FORBIDDEN"
    assert named(status(Code.FORBIDDEN, "no")).message == "FORBIDDEN: no"
    words_of_rocketmq = status(Code.ILLEGAL_INVISIBLE_TIME, "the invisibleTime is too small")
    assert named(words_of_rocketmq) == words_of_rocketmq


def test_overall_status_without_entries() -> None:
    assert overall([]).code == Code.INTERNAL_SERVER_ERROR
