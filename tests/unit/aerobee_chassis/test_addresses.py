"""Addresses as the chassis writes them."""

from __future__ import annotations

import pytest

from aerobee_chassis.addresses import is_relayed_tls, join_address, relayed_address


@pytest.mark.parametrize(
    ("path", "address", "tls"),
    [
        ("/tmp/socket", "unix", False),
        ("", "unix", False),
        ("/tmp/private/192.0.2.1:5123", "192.0.2.1:5123", False),
        ("/tmp/private/[::1]:5123", "[::1]:5123", False),
        ("/tmp/private/tls,192.0.2.1:5123", "192.0.2.1:5123", True),
        ("/tmp/private/tls,[::1]:5123", "[::1]:5123", True),
        ("/tmp/tls,private/192.0.2.1:5123", "192.0.2.1:5123", False),
    ],
)
def test_a_relays_socket_names_its_client_and_whether_that_uses_tls(
    path: str, address: str, tls: bool
) -> None:
    assert (relayed_address(path), is_relayed_tls(path)) == (address, tls)


@pytest.mark.parametrize(
    ("host", "address"), [("127.0.0.1", "127.0.0.1:1"), ("::1", "[::1]:1"), ("[::1]", "[::1]:1")]
)
def test_ipv6_host_is_put_in_brackets(host: str, address: str) -> None:
    assert join_address(host, 1) == address


def test_path_of_a_local_socket_stays_as_it_is() -> None:
    assert join_address("unix:/tmp/socket", 0) == "unix:/tmp/socket"
