"""Addresses as the chassis writes them."""

from __future__ import annotations

import pytest

from aerobee_chassis.addresses import join_address


@pytest.mark.parametrize(
    ("host", "address"), [("127.0.0.1", "127.0.0.1:1"), ("::1", "[::1]:1"), ("[::1]", "[::1]:1")]
)
def test_ipv6_host_is_put_in_brackets(host: str, address: str) -> None:
    assert join_address(host, 1) == address
