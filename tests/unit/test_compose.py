"""docker-compose.secure.yml leaves no port open."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]


def services(name: str) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = yaml.safe_load((ROOT / name).read_text())["services"]
    return found


def insecure(service: dict[str, Any]) -> str:
    return str(service.get("environment", {}).get("AEROBEE_INSECURE", ""))


def test_secure_compose_has_a_console_with_login_and_without_the_certificate_of_a_role() -> None:
    console = services("docker-compose.secure.yml")["console"]
    assert {"--login", "--tls-cert=/secure/certs/console.crt"} <= set(console["command"])
    assert "--insecure" not in console["command"]
    assert set(console["environment"]) == {"AEROBEE_TLS_TRUST_CERT_PATH"}


def test_secure_compose_closes_each_service_that_compose_opens() -> None:
    secure = services("docker-compose.secure.yml")
    opened = {
        name for name, each in services("docker-compose.yml").items() if insecure(each) == "true"
    }
    assert {"namesrv", "broker", "proxy", "broker-b1"} <= opened
    assert {name for name in opened if insecure(secure.get(name, {})) != "false"} == set()
