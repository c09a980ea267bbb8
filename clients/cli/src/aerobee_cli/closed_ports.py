"""Close the ports of local services with certificates that are made for them."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from aerobee_cli.authority import DAYS, SERVERS, Authority, default_hosts, settings_of, variable_of
from aerobee_cli.options import DEFAULT_CLUSTER
from aerobee_wire.identity import ADMIN, BROKER, Identity


def closed_ports(directory: Path, broker: str) -> list[str]:
    """Return the settings of a suite with certificates in `directory`.

    Certificates that are missing are made. `broker` is the brokerName. Raises CommandError.
    """
    Authority(directory, datetime.now(UTC)).keep(DEFAULT_CLUSTER, broker, default_hosts(), DAYS)
    return [
        f"{role}.{key}={value}"
        for role in SERVERS
        for key, value in settings_of(
            directory, Identity(DEFAULT_CLUSTER, role, broker if role == BROKER else role)
        ).items()
    ]


def variables_of_admin(directory: Path) -> dict[str, str]:
    """Return the environment of clients with the certificate of the administrator."""
    settings = settings_of(directory, Identity(DEFAULT_CLUSTER, ADMIN, ADMIN))
    return {variable_of(key): value for key, value in settings.items()}
