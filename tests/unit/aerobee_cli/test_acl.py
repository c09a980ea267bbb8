"""`aerobee acl`: policies of a user that does not exist. No network."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Self

import pytest

from aerobee_cli.commands import acl
from aerobee_cli.errors import CommandError
from aerobee_cli.main import main
from aerobee_cli.options import BadOption
from aerobee_cli.secrets import read_secret
from aerobee_client.admin.descriptions import AccessChange
from aerobee_wire.status import Code, MqError


class Admin:
    """An admin client that creates policies, and then cannot return the user."""

    def __init__(self, failure: MqError) -> None:
        self._failure = failure

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...

    def create_policies(self, *_: Any) -> AccessChange:
        return AccessChange(changed_at="10.0.0.8:9876", lacking={})

    def get_user(self, name: str) -> None:
        raise self._failure


@pytest.mark.parametrize(
    ("code", "warned"), [(Code.QUERY_NOT_FOUND, True), (Code.NO_PERMISSION, False)]
)
def test_policies_of_a_user_that_does_not_exist_are_created_with_a_warning(
    code: Code, warned: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    failure = MqError(code, "there is no user 'biling'")
    monkeypatch.setattr("aerobee_cli.options.admin_client", lambda _: Admin(failure))
    arguments = ["biling", "--resource", "Topic:orders", "--actions", "Pub"]
    assert main(["acl", "create", *arguments]) == 0
    out, err = capsys.readouterr()
    assert "created" in out and ("no user 'biling'" in err) is warned


# ---- test access files ----
#
# Files of users and policies: what is imported, what is named, and what is written again.


PLAIN_ACL = """
globalWhiteRemoteAddresses:
- 10.10.103.*
accounts:
- accessKey: RocketMQ
  secretKey: 12345678
  whiteRemoteAddress: 192.168.0.*
  admin: false
  defaultTopicPerm: DENY
  defaultGroupPerm: SUB
  topicPerms:
  - topicA=DENY
  - topicB=PUB|SUB
  groupPerms:
  - groupA=DENY
  - "%RETRY%groupB=SUB"
- accessKey: rocketmq2
  secretKey: 's3cret-2'
  admin: true
"""


def write(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "file"
    file.write_text(text)
    return file


def test_accounts_of_plain_acl_become_users(tmp_path: Path) -> None:
    found = acl.read(write(tmp_path, PLAIN_ACL))
    normal, admin = found.users
    assert (normal.name, normal.secrets, normal.super) == ("RocketMQ", (b"12345678",), False)
    assert (admin.name, admin.secrets, admin.super) == ("rocketmq2", (b"s3cret-2",), True)
    assert [str(each) for each in normal.policies] == [
        "DENY All on Topic:topicA (CUSTOM)",
        "ALLOW Pub,Sub on Topic:topicB (CUSTOM)",
        "DENY All on Group:groupA (CUSTOM)",
        "ALLOW Sub on Group:groupB (CUSTOM)",
        "ALLOW Sub on Group:* (DEFAULT)",
    ]
    named = [each.partition(":")[0] for each in found.skipped]
    assert named == ["globalWhiteRemoteAddresses", "whiteRemoteAddress of RocketMQ"]


def test_file_of_users_is_read_and_exported_without_secrets(tmp_path: Path) -> None:
    entry: dict[str, Any] = {
        "username": "app",
        "password": "s3cret",
        "policies": [
            {"resource": ["Topic:a", "Topic:b*"], "actions": "Pub"},
            {"resource": "Topic:a", "actions": "Sub"},
            {"resource": "Topic:a", "actions": "Sub", "decision": "DENY"},
        ],
    }
    found = acl.read(write(tmp_path, json.dumps({"users": [entry]})))
    [user] = found.users
    assert [str(each) for each in user.policies] == [
        "ALLOW Pub,Sub on Topic:a (CUSTOM)",
        "ALLOW Pub on Topic:b* (CUSTOM)",
        "DENY Sub on Topic:a (CUSTOM)",
    ]
    info = {"username": "app", "super": False, "enabled": True}
    text = json.dumps(acl.exported([info], {"app": user.policies}))
    assert "s3cret" not in text and "password" not in text
    [again] = acl.read(write(tmp_path, text)).users
    assert again.policies == user.policies and again.secrets == ()


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        "- 1",
        "accounts: {}",
        "accounts:\n- s3cret",
        "accounts:\n- accessKey: a b\n  secretKey: s3cret",
        "accounts:\n- accessKey: a",
        "accounts:\n- accessKey: a\n  secretKey: s3cret\n  topicPerms: [t=ALL]",
        "accounts:\n- accessKey: a\n  secretKey: 's3cret",
        '{"users": [{"username": "a", "password": "s3cret", "policies": 1}]}',
        '{"users": [{"username": "a", "password": "s3cret"',
    ],
)
def test_mistake_is_named_without_a_secret(tmp_path: Path, text: str) -> None:
    with pytest.raises(CommandError) as caught:
        acl.read(write(tmp_path, text))
    assert "s3cret" not in str(caught.value) and str(tmp_path) in str(caught.value)


def test_policies_that_the_table_cannot_keep_apart_are_refused(tmp_path: Path) -> None:
    policies = [
        {"resource": "Topic:a", "actions": "Pub", "sourceIps": ["10.0.0.0/8"]},
        {"resource": "Topic:a", "actions": "Sub"},
    ]
    users = {"users": [{"username": "a", "password": "p", "policies": policies}]}
    with pytest.raises(CommandError, match="sourceIps"):
        acl.read(write(tmp_path, json.dumps(users)))


def test_secret_comes_from_a_file_or_a_generator(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write(tmp_path, "s3cret with a blank \n")
    file.chmod(0o600)
    assert read_secret(file, generate=False) == ("s3cret with a blank ", False)
    assert capsys.readouterr().err == ""
    file.chmod(0o644)
    read_secret(file, generate=False)
    assert "chmod 600" in capsys.readouterr().err
    first, generated = read_secret(None, generate=True)
    assert generated and len(first) == 32 and first != read_secret(None, generate=True)[0]


def test_secret_without_a_source_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", None)
    for file, generate in (
        (None, False),
        (write(tmp_path, "x"), True),
        (tmp_path / "no", False),
        (write(tmp_path, ""), False),
    ):
        with pytest.raises(BadOption):
            read_secret(file, generate=generate)
