"""`aerobee console` as a process: its options, and what it refuses."""

from __future__ import annotations

import json
import os
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from support.processes import certificates
from support.processes.command import COMMAND, aerobee
from support.processes.service import ServiceProcess, namesrv_process

MAX_RESIDENT_MIB = 120


def fetched(url: str, **headers: str) -> tuple[int, str]:
    request = urllib.request.Request(url, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_it_serves_on_loopback_and_says_where(tmp_path: Path) -> None:
    with namesrv_process(tmp_path) as namesrv:
        process = subprocess.Popen(
            [*COMMAND, "--namesrv", namesrv.address, "console", "--port", "0", "--read-only"],
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert process.stdout is not None
            address = json.loads(process.stdout.readline())["address"]
            assert address.startswith("127.0.0.1:")
            status, text = fetched(f"http://{address}/brokers")
            assert status == 200 and "No broker is registered" in text and "read-only" in text
            status, _ = fetched(f"http://{address}/brokers", Host="evil.example")
            assert status == 421
            memory = Path(f"/proc/{process.pid}/status").read_text(encoding="utf-8")
            resident = int(memory.partition("VmRSS:")[2].split()[0]) // 1024
            assert resident <= MAX_RESIDENT_MIB
        finally:
            process.terminate()
            assert process.wait(15) == 0
        assert json.loads(process.stdout.read())["event"] == "stopped"


def test_a_name_server_that_does_not_answer_is_an_error_page() -> None:
    console = ServiceProcess("aerobee_console", "--port", "0", "--namesrv", "127.0.0.1:1")
    with console:
        status, text = fetched(f"http://{console.address}/topics")
    assert status == 502 and "127.0.0.1:1" in text


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1"])
def test_other_addresses_need_insecure(host: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "aerobee_console", "--host", host],
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )
    assert done.returncode == 2 and "--insecure" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("options", "is_insecure"),
    [
        (("--namesrv", "127.0.0.1:1"), False),
        (("--namesrv", "127.0.0.1:1", "--host", "0.0.0.0", "--insecure"), True),
        (("--namesrv", "192.0.2.1:9876"), True),
    ],
)
def test_each_page_says_that_the_console_or_the_cluster_is_open(
    options: tuple[str, ...], is_insecure: bool
) -> None:
    console = ServiceProcess("aerobee_console", "--port", "0", *options)
    with console:
        for path in ("/keys", "/no-such-page"):
            _, text = fetched(f"http://127.0.0.1:{console.port}{path}")
            assert (">insecure</span>" in text) == is_insecure


def test_a_console_with_login_and_tls_is_not_insecure(tmp_path: Path) -> None:
    """The command of docs/console.md, "Login". The name LOCALHOST counts as a foreign address."""
    certificate, key = certificates.write(tmp_path)
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "aerobee_console", "--host", "LOCALHOST", "--port", "0"),
            *("--login", "--tls-cert", str(certificate), "--tls-key", str(key)),
        ],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"AEROBEE_TLS_TRUST_CERT_PATH": str(certificate)},
    )
    try:
        assert process.stdout is not None
        ready = json.loads(process.stdout.readline())
        assert ready["event"] == "ready"
        url = f"https://127.0.0.1:{ready['address'].rpartition(':')[2]}/login"
        context = ssl.create_default_context(cafile=str(certificate))
        with urllib.request.urlopen(url, timeout=10, context=context) as answer:
            assert "Secret key" in answer.read().decode()
    finally:
        process.terminate()
        assert process.wait(15) == 0


def test_a_port_in_use_is_one_line() -> None:
    console = ServiceProcess("aerobee_console", "--port", "0", "--namesrv", "127.0.0.1:1")
    with console:
        done = aerobee("console", "--port", str(console.port))
    assert done.returncode == 1 and done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
