"""Options of the proxy: RocketMQ's file, defaults, mistakes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from aerobee_chassis.config import load
from aerobee_chassis.errors import ConfigError
from aerobee_proxy.app import ProxyApp
from aerobee_proxy.config import ProxyOptions
from support.codes import raises_about
from support.configuration import samples


def test_file_of_a_rocketmq_cluster(tmp_path: Path) -> None:
    file = tmp_path / "rmq-proxy.json"
    settings = {"rocketMQClusterName": "DefaultCluster", "grpcServerPort": 8082}
    file.write_text(json.dumps({**settings, "namesrvAddr": "a:9876;b:9876"}))
    options = load(ProxyOptions, file=file)
    assert options.grpc_server_port == 8082
    assert options.namesrvs == ("a:9876", "b:9876")
    assert options.ignored_keys == ("rocketMQClusterName",)


def test_defaults() -> None:
    options = ProxyOptions()
    assert options.grpc_server_port == 8081
    assert options.max_message_size == 4_194_304
    assert options.max_user_property_size == 16_384
    assert options.user_property_max_num == 128
    assert options.max_delay_time_mills == 24 * 3_600_000
    assert options.max_invisible_time_mills == 12 * 3_600_000


def test_every_key_is_known_in_one_way() -> None:
    assert samples.repeated(ProxyOptions) == []


@pytest.mark.parametrize("path", samples.taken("proxy"), ids=lambda path: path.stem)
def test_rmq_proxy_json_of_a_public_cluster_is_taken(path: Path) -> None:
    assert set(load(ProxyOptions, file=path).ignored_keys) <= json.loads(path.read_text()).keys()


def test_topic_creation_has_its_effect() -> None:
    options = load(ProxyOptions, file=samples.FILES / "proxy" / "topic-creation.json")
    assert not options.auto_create_topics
    assert "topicQueueConfig" in options.ignored_keys


def test_first_kind_of_access_control_is_refused_with_the_keys_of_ours() -> None:
    with pytest.raises(ConfigError, match="authenticationEnabled") as caught:
        load(ProxyOptions, file=samples.refused("proxy", "acl"))
    assert caught.value.about == "enableACL"


def test_separators_alone_are_no_address() -> None:
    assert not load(ProxyOptions, sets=["advertisedEndpoints= ; "]).advertised_endpoints


@pytest.mark.parametrize(
    ("given", "about"),
    [
        *(
            ({"namesrvAddr": text}, "namesrvAddr")
            for text in ("nowhere", "a:b", "host:70000", "host:0", ":1")
        ),
        ({"advertisedEndpoints": "a.example:1;b.example:1"}, "advertisedEndpoints"),
        ({"tlsCertPath": "a.crt"}, "tlsKeyPath"),
        ({"tlsKeyPath": "a.key"}, "tlsCertPath"),
        ({"tlsTestModeEnable": False}, "tlsTestModeEnable"),
        ({"tlsServerMode": "sometimes"}, "tlsServerMode"),
        ({"authorizationEnabled": True}, "authenticationEnabled"),
    ],
)
def test_mistake_is_refused_with_the_option_to_change(given: dict[str, object], about: str) -> None:
    with raises_about(ConfigError, about):
        ProxyOptions.from_values(given)


@pytest.mark.parametrize(
    "given",
    [
        {"advertisedEndpoints": "10.0.0.1:8081;10.0.0.2:8081"},
        {"advertisedEndpoints": "mq.example:8081"},
        {"tlsTestModeEnable": "false", "tlsServerMode": "disabled"},
    ],
)
def test_addresses_one_name_and_no_certificate_without_tls_are_taken(given: dict[str, str]) -> None:
    ProxyOptions.from_values(given)


def test_the_secret_of_a_cluster_is_refused_without_showing_it() -> None:
    """Certificates prove what a process is: decisions 33 and 52."""
    with raises_about(ConfigError, "innerClientAuthenticationCredentials") as caught:
        load(ProxyOptions, file=samples.refused("proxy", "inner-client"))
    assert "tlsCertPath" in str(caught.value) and "secretKey" not in str(caught.value)


def test_key_password_is_not_shown() -> None:
    options = ProxyOptions.from_values({"tlsKeyPassword": "opensesame"})
    assert options.tls_key_password.get_secret_value() == "opensesame"
    assert "opensesame" not in json.dumps(options.to_json()) + repr(options)


def test_a_proxy_on_another_address_than_loopback_needs_tls_and_users() -> None:
    host, users = "bindAddress=0.0.0.0", "authenticationUsersFile=users.json"
    closed = ("authenticationEnabled=true", users)
    assert not load(ProxyOptions, sets=(host, *closed)).is_insecure
    for sets in ((host,), (host, *closed, "tlsServerMode=disabled"), (host, users)):
        with raises_about(ConfigError, "bindAddress") as caught:
            load(ProxyOptions, sets=sets)
        assert "authenticationEnabled=true" in str(caught.value)
        assert load(ProxyOptions, sets=(*sets, "insecure=true")).is_insecure


def test_workers_do_not_share_the_administration_port() -> None:
    with raises_about(ConfigError, "enableProxyAdminGrpcServer"):
        load(ProxyOptions, sets=["enableProxyAdminGrpcServer=true", "workers=2"])


def test_a_proxy_needs_a_name_server() -> None:
    with raises_about(ConfigError, "namesrvAddr"):
        ProxyApp(ProxyOptions())
