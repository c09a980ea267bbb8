"""The option `tls` of a client, and its variables."""

from __future__ import annotations

from typing import Any

import pytest

from aerobee_client import Code, Tls
from support.codes import raises_code


@pytest.mark.parametrize(
    "given",
    [
        {"ca": ""},
        {"ca": "ca.crt", "certificate": "c"},
        {"ca": "ca.crt", "key": "k"},
        {"ca": "ca.crt", "verify": "none"},
    ],
    ids=str,
)
def test_options_that_do_not_fit_are_refused(given: dict[str, Any]) -> None:
    with raises_code(Code.INVALID_PARAMETER):
        Tls(**given)


def test_variables_without_an_authority_mean_plaintext() -> None:
    assert Tls.from_environment({}) is None
    assert Tls.from_environment({"AEROBEE_TLS_CERT_PATH": "c", "AEROBEE_TLS_KEY_PATH": "k"}) is None


def test_variables_are_those_of_the_services() -> None:
    tls = Tls.from_environment(
        {"AEROBEE_TLS_TRUST_CERT_PATH": "ca.crt", "AEROBEE_TLS_VERIFY": "host"}
    )
    assert tls == Tls("ca.crt", verify="host")
