"""What a relay makes of addresses and settings."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from aerobee_chassis.tls_port.relay import text_of
from aerobee_chassis.tls_port.settings import RelaySettings, TlsSettings


@pytest.mark.parametrize(
    ("address", "text"),
    [
        (("192.0.2.1", 5123), "192.0.2.1:5123"),
        (("2001:db8::1", 5123, 0, 0), "[2001:db8::1]:5123"),
        # An IPv4 client of a socket that takes both.
        (("::ffff:192.0.2.1", 5123, 0, 0), "192.0.2.1:5123"),
        (("fe80::1%eth0", 5123, 0, 2), "[fe80::1]:5123"),
    ],
)
def test_client_is_named_by_host_and_port(address: tuple[str, int], text: str) -> None:
    assert text_of(address) == text


def test_settings_have_the_same_names_on_either_side() -> None:
    settings = RelaySettings((3, 4), "/tmp/private/grpc", TlsSettings(key_password="secret"), 7)
    arrived = json.loads(settings.to_json(), object_hook=lambda values: SimpleNamespace(**values))
    for name in RelaySettings.__slots__:
        if name not in ("tls", "listeners", "trusted"):
            assert getattr(arrived, name) == getattr(settings, name)
    assert (arrived.listeners, arrived.trusted) == ([3, 4], [])
    for name in TlsSettings.__slots__:
        assert getattr(arrived.tls, name) == getattr(settings.tls, name)


def test_password_of_a_key_is_not_shown() -> None:
    assert "secret" not in repr(TlsSettings(key_password="secret"))
