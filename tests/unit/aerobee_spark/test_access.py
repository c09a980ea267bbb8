"""Test the options for a user and for TLS: they belong together, and reach the clients."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from aerobee_client.credentials import Credentials
from aerobee_client.tls import Tls
from aerobee_spark.access import Access
from aerobee_spark.errors import OptionError
from aerobee_spark.reading.options import ReadOptions
from aerobee_spark.reading.planning import connect
from aerobee_spark.writing.options import WriteOptions
from aerobee_wire.status import Code
from support.codes import raises_about, raises_code

ORDERS = {"nameServer": "h:9876", "topic": "orders"}
USER = {"accessKey": "etl", "secretKeyFile": "etl.secret"}
CERTIFICATES = {"tlsCa": "ca.crt", "tlsCert": "etl.crt", "tlsKey": "etl.key"}
Options = type[ReadOptions] | type[WriteOptions]
both = pytest.mark.parametrize("kind", [ReadOptions, WriteOptions])


@both
def test_client_of_a_worker_has_the_user_and_the_certificates(
    kind: Options, tmp_path: Path
) -> None:
    secret = tmp_path / "etl.secret"
    secret.write_text("s3cret")
    given = {"ACCESSKEY": "etl", "secretkeyfile": str(secret), **CERTIFICATES, "tlsCluster": "prod"}
    options = pickle.loads(pickle.dumps(kind.parse(ORDERS | given, {})))
    assert "s3cret" not in repr(options)
    assert options.access.settings() == {
        "tls": Tls("ca.crt", "etl.crt", "etl.key", cluster="prod"),
        "credentials": Credentials("etl", secret_key_file=str(secret)),
    }


@both
def test_without_options_the_environment_decides(kind: Options) -> None:
    settings = kind.parse(ORDERS, {}).access.settings()
    assert settings == {"tls": None, "credentials": None}
    only_tls = kind.parse(ORDERS | {"tlsCa": "ca.crt"}, {}).access.settings()
    assert only_tls == {"tls": Tls("ca.crt"), "credentials": None}


@both
@pytest.mark.parametrize(
    ("missing", "given"),
    [
        ("secretKeyFile", {"accessKey": "etl"}),
        ("accessKey", {"secretKeyFile": "etl.secret"}),
        ("tlsKey", {"tlsCa": "ca.crt", "tlsCert": "etl.crt"}),
        ("tlsCert", {"tlsCa": "ca.crt", "tlsKey": "etl.key"}),
        ("tlsCa", {"tlsCert": "etl.crt", "tlsKey": "etl.key"}),
        ("tlsCa", {"tlsCluster": "prod"}),
        ("accessKey", USER | {"accessKey": "a b"}),
        ("tlsCa", {"tlsCa": ""}),
        ("secretKey", {"secretKey": "s3cret"}),
    ],
)
def test_option_that_is_unknown_invalid_or_half_of_a_pair_is_refused(
    kind: Options, missing: str, given: dict[str, str]
) -> None:
    with raises_about(OptionError, missing) as caught:
        kind.parse(ORDERS | given, {})
    assert "s3cret" not in str(caught.value)


def test_secret_key_that_a_machine_lacks_is_an_error(tmp_path: Path) -> None:
    with raises_code(Code.INVALID_PARAMETER, "credentials"):
        connect("127.0.0.1:9876", Access("etl", str(tmp_path / "missing")))
