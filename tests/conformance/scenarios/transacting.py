"""Scenarios of transactions: commit, rollback, check-back."""

from __future__ import annotations

import time

import pytest

from conformance.runner import scenario
from support.clock.polling import until_sync
from support.proxy.official_sdk import SdkError
from support.proxy.sdk_cluster import (
    SOON_S,
    Cluster,
    Commands,
    bodies_of,
    receive,
    simple,
)

INVALID_TRANSACTION_ID = 40008
CHECK_FROM_S, CHECK_TO_S = 6, 40  # after the half message


@scenario({"resolution": "COMMIT"}, {"resolution": "ROLLBACK"})
def f18_an_unended_transaction_is_checked_back(
    cluster: Cluster, sdk: Commands, resolution: str
) -> None:
    topic = cluster.topic("MIXED")
    simple(sdk, cluster.group(), topic)
    sdk.do("producer", id="p", topics=[topic], resolution=resolution)
    half_at = time.time()
    sdk.do("send", id="p", topic=topic, body="half", transaction="t", properties={"x": "1"})
    until_sync(lambda: sdk.events("check", "p"), "the checker is called", timeout_s=SOON_S)
    (check,) = sdk.events("check", "p")
    assert (check["body"], check["properties"]) == ("half", {"x": "1"}) and not check["corrupted"]
    assert CHECK_FROM_S <= check["at"] - half_at <= CHECK_TO_S
    if resolution == "COMMIT":
        assert bodies_of(receive(sdk, 1)) == ["half"]
    sdk.do("send", id="p", topic=topic, body="next")
    assert bodies_of(receive(sdk, 1)) == ["next"]
    assert len(sdk.events("check", "p")) == 1
    with pytest.raises(SdkError) as caught:
        sdk.do("commit", transaction="t")
    assert caught.value.code in (INVALID_TRANSACTION_ID, None)  # one SDK hides the code


@scenario()
def f17_a_half_message_is_visible_after_commit_only(cluster: Cluster, sdk: Commands) -> None:
    topic = cluster.topic("TRANSACTION")
    simple(sdk, cluster.group(), topic, await_s=2)  # well before the first check
    # The checker ends no transaction: a slow machine may be checked before it ends one itself.
    sdk.do("producer", id="p", topics=[topic], resolution="UNKNOWN")
    half_at, sent = {}, {}
    for name in ("kept", "dropped", "next"):
        half_at[name] = time.time()
        sent[name] = sdk.do("send", id="p", topic=topic, body=name, transaction=name, tag="a")
    sdk.do("commit", transaction="next")
    assert bodies_of(receive(sdk, 1)) == ["next"]
    sdk.do("rollback", transaction="dropped")
    sdk.do("commit", transaction="kept")
    (message,) = receive(sdk, 1)
    assert (message["body"], message["tag"], message["attempt"]) == ("kept", "a", 1)
    assert message["message_id"] == sent["kept"]["message_id"]
    half_at["last"] = time.time()
    sdk.do("send", id="p", topic=topic, body="last", transaction="last")
    sdk.do("commit", transaction="last")
    assert bodies_of(receive(sdk, 1)) == ["last"]
    # None, unless the machine needed so long.
    for check in sdk.events("check", "p"):
        assert check["at"] - half_at[check["body"]] >= CHECK_FROM_S
