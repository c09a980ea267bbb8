"""Options of a suite: which service gets what."""

from __future__ import annotations

from pathlib import Path

import pytest

from aerobee_chassis.errors import ConfigError
from aerobee_suite.options import Places, read
from support.codes import raises_about


def test_each_service_gets_its_own_options(tmp_path: Path) -> None:
    places = Places(data=tmp_path, host="::1", namesrv_port=1, broker_port=2, proxy_port=3)
    sets = ["brokerName=b", "namesrv.orderMessageEnable=true", "proxy.tlsServerMode=disabled"]
    options = read(places, sets, {})
    assert (options.namesrv.listen_port, options.namesrv.order_message_enable) == (1, True)
    assert (options.broker.listen_port, options.broker.broker_name) == (2, "b")
    assert (options.proxy.grpc_server_port, options.proxy.tls_server_mode) == (3, "disabled")
    assert {each.bind_address for _, each in options.each()} == {"::1"}
    assert options.broker.store_path_root_dir == tmp_path / "broker" / "store"
    assert options.namesrv.kv_config_path == tmp_path / "namesrv" / "kvConfig.json"


def test_the_environment_reaches_each_service() -> None:
    environ = {"AEROBEE_BIND_ADDRESS": "0.0.0.0", "AEROBEE_BROKER_NAME": "b"}
    options = read(Places(insecure=True), [], environ)
    assert {each.bind_address for _, each in options.each()} == {"0.0.0.0"}
    assert options.broker.broker_name == "b"


@pytest.mark.parametrize(
    ("setting", "about"),
    [
        ("brokerNmae=b", "brokerNmae"),
        ("proxy.brokerName=b", "brokerName"),
        ("namesrv.listenPort=x", "listenPort"),
        ("testControl=true", "testControl"),
    ],
)
def test_an_option_that_the_service_does_not_have_is_refused(setting: str, about: str) -> None:
    with raises_about(ConfigError, about):
        read(Places(), [setting], {})
