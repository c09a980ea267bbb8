"""Users of a proxy, their policies, and calls that they sign."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from aerobee_proxy.v2.authentication import signature
from aerobee_wire.access.policies import Policy, policies_of
from support.proxy.harness import CLIENT_ID

SECRET = "s3cret, with = and /"
DATE = "20261121T141500Z"
BILLING = {"username": "billing", "password": SECRET}
DISABLED = {"username": "gone", "password": SECRET, "userStatus": "disable"}


def write_users(file: Path, *users: dict[str, Any]) -> Path:
    file.write_text(json.dumps({"users": users}))
    file.chmod(0o600)
    return file


def policy(resource: str, *actions: str) -> list[Policy]:
    entry = {"resource": resource, "actions": [*actions] or ["All"]}
    return policies_of({**entry, "decision": "ALLOW", "policyType": "CUSTOM"})


def signed(
    name: str = "billing", secret: str = SECRET, date: str = DATE, **change: str
) -> dict[str, str]:
    """The metadata of the Python SDK."""
    header = (
        f"MQv2-HMAC-SHA1 Credential={name}, SignedHeaders=x-mq-date-time, "
        f"Signature={signature(secret.encode(), date)}"
    )
    given = {"x-mq-client-id": CLIENT_ID, "x-mq-date-time": date, "authorization": header}
    return {**given, **change}
