"""The official SDKs, unmodified, over TLS, against a proxy that takes nothing else.

So every connection is in TLS, also those to the endpoints that routes name. The SDKs of Python and
Node.js verify the certificate; those that begin in TLS unless told otherwise do not.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.processes import certificates
from support.processes.service import ServiceProcess
from support.proxy.official_sdk import OfficialSdk, Sdk, SdkError, newest, newest_sdks
from support.proxy.sdk_cluster import (
    ALL,
    Cluster,
    bodies_of,
    delivered,
    receive,
    sdk_cluster,
    send,
    simple,
)

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with sdk_cluster(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return certificates.write(tmp_path_factory.mktemp("certificates"))[0]


@pytest.fixture(scope="module")
def endpoints(cluster: Cluster, certificate: Path) -> Iterator[str]:
    """Of a proxy that enforces TLS."""
    key = certificate.with_suffix(".key")
    with ServiceProcess(
        *("aerobee_proxy", "--port", "0", "--namesrv", cluster.namesrv.address),
        *("--set", "tlsServerMode=enforcing"),
        *("--set", f"tlsCertPath={certificate}", "--set", f"tlsKeyPath={key}"),
    ) as proxy:
        yield f"localhost:{proxy.port}"


@pytest.mark.parametrize("official", newest_sdks(), ids=str)
def test_messages_are_sent_received_and_listened_for_over_tls(
    cluster: Cluster, endpoints: str, certificate: Path, official: OfficialSdk
) -> None:
    with Sdk(official, endpoints, cluster.home, roots=certificate) as sdk:
        messages_go_through(cluster, sdk)


@pytest.mark.parametrize("official", [sdk for sdk in newest_sdks() if sdk.tls_by_default], ids=str)
def test_an_sdk_that_begins_in_tls_can_be_set_to_use_plaintext(
    cluster: Cluster, official: OfficialSdk
) -> None:
    with Sdk(official, cluster.proxy.address, cluster.home) as sdk:
        messages_go_through(cluster, sdk)


def messages_go_through(cluster: Cluster, sdk: Sdk) -> None:
    """To a push consumer, and to a simple one."""
    listened, asked_for = cluster.topic(), cluster.topic()
    sdk.do("push", id="l", group=cluster.group(), subscriptions={listened: ALL})
    sent = send(sdk, listened, 3)
    assert sorted(bodies_of(delivered(sdk, "l", 3))) == sorted(sent)

    simple(sdk, cluster.group(), asked_for)
    sent = send(sdk, asked_for, 3)
    assert sorted(bodies_of(receive(sdk, 3))) == sorted(sent)


def test_plaintext_gets_nowhere(cluster: Cluster, endpoints: str) -> None:
    with (
        Sdk(newest("python"), endpoints, cluster.home) as sdk,
        pytest.raises(SdkError, match="failed to fetch"),
    ):
        send(sdk, cluster.topic(), 1)
