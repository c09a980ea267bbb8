"""A service that other machines may reach, and that serves each caller, does not start by itself.

The name LOCALHOST counts as one of another address than loopback, because no resolver is asked. So
no port of these tests is open to other machines.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from aerobee_chassis.command_line import EXIT_BAD_OPTIONS
from aerobee_cli.authority import Authority
from support.clock.polling import until_sync
from support.observing.scrape import scrape
from support.processes.service import METRICS, SMALL_LOG, ServiceProcess, run

HOST = "LOCALHOST"
SERVICES = ("aerobee_namesrv", "aerobee_broker", "aerobee_proxy", "aerobee_suite")


def arguments(service: str, data: Path) -> Sequence[str]:
    """Of a service on a free port."""
    if service == "aerobee_suite":
        ports = (f"--{each}-port=0" for each in ("namesrv", "broker", "proxy"))
        return (*ports, "--data", str(data), SMALL_LOG)
    place = ("--namesrv", "127.0.0.1:1") if service == "aerobee_proxy" else ("--data", str(data))
    return ("--port", "0", *place)


def warnings(process: ServiceProcess) -> list[dict[str, Any]]:
    return [line for line in process.log if line["level"] == "warning"]


@pytest.mark.parametrize("service", SERVICES)
def test_it_names_three_ways_forward(service: str, tmp_path: Path) -> None:
    done = run(service, "--host", HOST, *arguments(service, tmp_path))
    assert done.returncode == EXIT_BAD_OPTIONS
    assert not list(tmp_path.iterdir())
    for way in ("aerobee certs init", "tlsCertPath", "--insecure"):
        assert way in done.stderr


@pytest.mark.parametrize("way", ["--insecure", "AEROBEE_INSECURE"])
def test_an_insecure_service_says_so_in_log_and_metric(way: str, tmp_path: Path) -> None:
    options, env = ((way,), {}) if way.startswith("--") else ((), {way: "true"})
    given = arguments("aerobee_namesrv", tmp_path)
    with ServiceProcess(
        "aerobee_namesrv", "--host", HOST, *given, *METRICS, *options, env=env
    ) as namesrv:
        (warning,) = until_sync(lambda: warnings(namesrv))
        assert (warning["event"], warning["listening_on"]) == ("insecure", HOST)
        assert scrape(namesrv)["aerobee_insecure"] == 1


def test_a_certificate_that_expires_soon_is_in_log_and_metric(tmp_path: Path) -> None:
    secure = tmp_path / "secure"
    Authority(secure, datetime.now(UTC)).init("DefaultCluster", "broker-a", ["localhost"], 5)
    given = arguments("aerobee_namesrv", tmp_path)
    options = ("--config", str(secure / "namesrv.conf"), *METRICS)
    with ServiceProcess("aerobee_namesrv", *given, *options) as namesrv:
        (warning,) = until_sync(lambda: warnings(namesrv))
        assert (warning["event"], warning["option"]) == ("certificate_expires", "tlsCertPath")
        assert warning["days_left"] == 4
        found = scrape(namesrv)
        for option in ("tlsCertPath", "tlsTrustCertPath"):
            assert f'aerobee_certificate_expiry_timestamp_seconds{{option="{option}"}}' in found


def test_a_service_on_loopback_says_nothing(tmp_path: Path) -> None:
    given = arguments("aerobee_namesrv", tmp_path)
    with ServiceProcess("aerobee_namesrv", *given, *METRICS) as namesrv:
        assert not [line for line in namesrv.log if line["level"] == "warning"]
        assert scrape(namesrv)["aerobee_insecure"] == 0
