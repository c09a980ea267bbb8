"""Addresses as the chassis writes them."""

from __future__ import annotations

import pytest

from aerobee_chassis.addresses import is_relayed_tls, join_address, peer_address


@pytest.mark.parametrize(
    ("peer", "address"),
    [
        ("ipv4:127.0.0.1:5123", "127.0.0.1:5123"),
        ("ipv6:%5B::1%5D:5123", "[::1]:5123"),
        ("unix:/tmp/socket", "unix"),
        ("unix:", "unix"),
        ("unix:/tmp/private/192.0.2.1:5123", "192.0.2.1:5123"),
        ("unix:/tmp/private/[::1]:5123", "[::1]:5123"),
        ("unix:/tmp/private/tls,192.0.2.1:5123", "192.0.2.1:5123"),
        ("unix:/tmp/private/tls%2C[::1]:5123", "[::1]:5123"),
    ],
)
def test_peer_is_given_as_host_and_port(peer: str, address: str) -> None:
    assert peer_address(peer) == address


@pytest.mark.parametrize(
    ("peer", "tls"),
    [
        ("unix:/tmp/private/tls,192.0.2.1:5123", True),
        ("unix:/tmp/private/tls%2C[::1]:5123", True),
        ("unix:/tmp/tls,private/192.0.2.1:5123", False),
        ("unix:/tmp/private/192.0.2.1:5123", False),
        ("ipv4:127.0.0.1:5123", False),
    ],
)
def test_relay_marks_clients_that_use_tls(peer: str, tls: bool) -> None:
    assert is_relayed_tls(peer) is tls


@pytest.mark.parametrize(
    ("host", "address"), [("127.0.0.1", "127.0.0.1:1"), ("::1", "[::1]:1"), ("[::1]", "[::1]:1")]
)
def test_ipv6_host_is_put_in_brackets(host: str, address: str) -> None:
    assert join_address(host, 1) == address


def test_path_of_a_local_socket_stays_as_it_is() -> None:
    assert join_address("unix:/tmp/socket", 0) == "unix:/tmp/socket"
