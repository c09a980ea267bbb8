"""Encode the access table as a JSON file with a checksum, and replace the file.

The file contains secrets, because an HMAC needs them. So only its owner may read it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from aerobee_wire import checked_json, files
from aerobee_wire.access.policies import policies_of
from aerobee_wire.access.quotas import Quota, Rates, check_rates, parse_subject
from aerobee_wire.access.table import Item, Record, UserPolicy, Version
from aerobee_wire.access.users import User
from aerobee_wire.status import MqError

MODE = 0o600


class TableFile(NamedTuple):
    """The content of a file.

    `current_ms` is the last time at which the server ran with this table, in milliseconds since the
    epoch.
    """

    records: list[Record]
    current_ms: int


def encode_record(record: Record) -> str:
    """Return a record as it is in the file, for `joined`."""
    return json.dumps(_to_json(record), ensure_ascii=False, separators=(",", ":"))


def joined(records: Iterable[str], current_ms: int) -> bytes:
    """Return the content of a file with these records."""
    return checked_json.encode_text(
        f'{{"currentMs":{current_ms:d},"records":[{",".join(records)}]}}'
    )


def decode(data: bytes) -> TableFile:
    """Return the content of a file. Raises ValueError, without a secret in its text."""
    content = checked_json.decode(data)
    try:
        records = [_of_json(each) for each in content["records"]]
        return TableFile(records, int(content["currentMs"]))
    except (KeyError, TypeError, AttributeError, MqError) as error:
        raise ValueError(f"a record of the access table is invalid ({type(error).__name__})") from (
            None
        )


def replace_private(path: Path, data: bytes) -> None:
    """Replace a file that only its owner may read.

    After a crash, the file has either the old or the new content. Raises `files.NotSynced` if the
    file was replaced, and another OSError if it was not.
    """
    new = path.with_name(path.name + ".tmp")
    new.unlink(missing_ok=True)  # of a crash; the mode counts for new files only
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | files.BINARY
    with open(os.open(new, flags, MODE), "wb") as file:  # noqa: PTH123
        file.write(data)
        file.flush()
        files.sync(file.fileno())
    new.replace(path)
    files.sync_replaced(path)


def _to_json(record: Record) -> dict[str, object]:
    item, version = record.item, record.version
    found: dict[str, object] = {"time": version.time_ms, "node": version.node}
    if record.deleted:
        found["deleted"] = True
    if isinstance(item, User):
        return found | {
            "user": item.name,
            "secrets": [secret.decode() for secret in item.secrets],
            "enabled": item.enabled,
            "super": item.super,
        }
    if isinstance(item, Quota):
        return found | {"quotaOf": item.subject, "rates": asdict(item.rates)}
    return found | {"policyOf": item.username, "policy": item.policy.to_json()}


def _of_json(entry: dict[str, Any]) -> Record:
    version = Version.checked(int(entry["time"]), str(entry["node"]))
    item: Item
    if "quotaOf" in entry:
        rates = Rates(**entry["rates"])
        check_rates(rates)
        item = Quota(*parse_subject(entry["quotaOf"]), rates)
    elif "user" in entry:
        secrets = tuple(secret.encode() for secret in entry["secrets"])
        item = User(
            str(entry["user"]), secrets, enabled=bool(entry["enabled"]), super=bool(entry["super"])
        )
    else:
        item = UserPolicy(str(entry["policyOf"]), policies_of(entry["policy"])[0])
    return Record(item, version, bool(entry.get("deleted", False)))
