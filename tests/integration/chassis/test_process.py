"""The life of a service process, in a real one: ready line, signals, exit codes, HTTP, draining."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import urllib.error
import urllib.request

import pytest

from aerobee_chassis.config import Options
from aerobee_chassis.errors import PortInUse
from aerobee_chassis.metrics import endpoint as metrics
from aerobee_chassis.metrics.endpoint import MetricsEndpoint
from aerobee_chassis.metrics.series import Kind, Metric, Registry
from support.clock.manual_clock import ManualClock
from support.clock.polling import until
from support.codes import raises_about

PROGRAM = """
import asyncio
import sys
from aerobee_chassis.config import Options
from aerobee_chassis.errors import StartError
from aerobee_chassis.lifecycle import App, Step
from aerobee_chassis.logs import configure
from aerobee_chassis.metrics.endpoint import MetricsEndpoint
from aerobee_chassis.metrics.series import Registry
from aerobee_chassis.process import run

class Sample(App):
    async def drain(self):
        if "stay" in sys.argv:
            await asyncio.Event().wait()
        await super().drain()

    async def _start_components(self):
        endpoint = MetricsEndpoint(
            Options(metrics_exporter_type="PROM"),
            Registry(),
            ready=lambda: self.serving,
            drained=lambda: self.drained,
        )
        await self.lifecycle.start(endpoint)
        await self.lifecycle.start(Step(stop=lambda: print("cleaned up", file=sys.stderr)))
        if "fail" in sys.argv:
            raise StartError("the disk is on fire; buy a new one")
        return {"address": "127.0.0.1:1", **endpoint.ready_fields}

configure("sample")
sys.exit(run(Sample))
"""


def start(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_stops_a_ready_process_cleanly(number: signal.Signals) -> None:
    with start() as process:
        assert process.stdout is not None
        ready = json.loads(process.stdout.readline())
        process.send_signal(number)
        out, err = process.communicate(timeout=20)
    assert (ready["event"], ready["service"]) == ("ready", "sample")
    assert ready["address"] == "127.0.0.1:1"
    assert [json.loads(line)["event"] for line in out.splitlines()] == ["stopping", "stopped"]
    assert (process.returncode, err) == (0, "cleaned up\n")


def test_start_error_is_one_line_and_exit_code_1() -> None:
    with start("fail") as process:
        out, err = process.communicate(timeout=20)
    assert (process.returncode, out) == (1, "")
    assert err == "cleaned up\nerror: the disk is on fire; buy a new one\n"


def drain(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "aerobee_chassis.drain", *arguments],
        capture_output=True,
        text=True,
        check=False,
    )


def test_drain_waits_until_the_clients_have_moved() -> None:
    with start() as process:
        assert process.stdout is not None
        address = json.loads(process.stdout.readline())["metrics"]
        port = int(address.rpartition(":")[2])
        assert get(port, "/readyz") == (200, "ready\n")
        done = drain("--pid", str(process.pid), address, "60")
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
        assert get(port, "/readyz") == (503, "drained\n")
        assert process.poll() is None, "it is the engine that stops it"
        process.terminate()
        out, _ = process.communicate(timeout=20)
    events = [json.loads(line)["event"] for line in out.splitlines()]
    assert events == ["draining", "drained", "stopping", "stopped"]
    assert process.returncode == 0


def test_drain_does_not_wait_longer_than_its_limit() -> None:
    with start("stay") as process:
        assert process.stdout is not None
        address = json.loads(process.stdout.readline())["metrics"]
        late = drain("--pid", str(process.pid), address, "1")
        assert (late.returncode, address in late.stderr) == (1, True)
        process.terminate()
        process.communicate(timeout=20)
    gone = drain("--pid", str(process.pid), address, "1")
    assert (gone.returncode, str(process.pid) in gone.stderr) == (1, True)


@pytest.mark.parametrize(
    "arguments", [(), ("1",), ("127.0.0.1:5557",), ("5557", "1"), ("--pid", "127.0.0.1:1", "1")]
)
def test_drain_refuses_a_bad_command_line(arguments: tuple[str, ...]) -> None:
    assert drain(*arguments).returncode == 2


@pytest.fixture
def registry() -> Registry:
    registry = Registry()
    registry.series(Metric("sample_total", Kind.COUNTER, "A sample.")).add(3)
    return registry


def get(port: int, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


async def test_metrics_and_health_are_served(registry: Registry) -> None:
    ready = False
    options = Options(metrics_exporter_type="PROM")
    endpoint = MetricsEndpoint(options, registry, lambda: ready)
    await endpoint.start()
    port = int(str(endpoint.ready_fields["metrics"]).rpartition(":")[2])

    async def ask(path: str) -> tuple[int, str]:
        return await asyncio.to_thread(get, port, path)

    try:
        assert "sample_total 3\n" in (await ask("/metrics?x=1"))[1]
        assert await ask("/healthz") == (200, "alive\n")
        assert await ask("/readyz") == (503, "not ready\n")
        ready = True
        assert await ask("/readyz") == (200, "ready\n")
        assert (await ask("/"))[0] == 404
        taken = options.model_copy(update={"metrics_prom_exporter_port": port})
        with raises_about(PortInUse, f"127.0.0.1:{port}"):
            await MetricsEndpoint(taken, registry, lambda: True).start()
    finally:
        await endpoint.stop()


async def test_the_end_of_the_endpoint_does_not_stop_the_loop(registry: Registry) -> None:
    endpoint = MetricsEndpoint(Options(metrics_exporter_type="PROM"), registry, lambda: True)
    await endpoint.start()
    ending = asyncio.create_task(endpoint.stop())
    await asyncio.sleep(0)
    assert not ending.done(), "its thread looks twice a second whether to stop"
    await ending
    assert endpoint.ready_fields == {}


async def test_metrics_that_are_off_open_no_port(registry: Registry) -> None:
    endpoint = MetricsEndpoint(Options(), registry, lambda: True)
    await endpoint.start()
    assert endpoint.ready_fields == {}
    await endpoint.stop()


async def test_silent_scrapers_are_ended_and_others_get_a_503(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = ManualClock(0)
    monkeypatch.setattr(metrics, "SystemClock", lambda: clock)
    endpoint = MetricsEndpoint(Options(metrics_exporter_type="PROM"), registry, lambda: True)
    await endpoint.start()
    port = int(str(endpoint.ready_fields["metrics"]).rpartition(":")[2])
    tries = 0

    async def scrape() -> str:
        nonlocal tries
        tries += 1
        status, text = await asyncio.to_thread(get, port, "/metrics")
        return text if status == 200 else ""

    try:
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(9)]
        status = await asyncio.wait_for(silent[-1][0].readline(), 30)
        assert status == b"HTTP/1.0 503 Service Unavailable\r\n"
        clock.advance(metrics.REQUEST_MS)
        for reader, writer in silent:
            await asyncio.wait_for(reader.read(), 30)
            writer.close()
        # The endpoint closes a connection before it lets another one in.
        text = await until(scrape, retry_on=(OSError,))
        assert f"aerobee_scrapes_refused_total {tries}\n" in text
    finally:
        await endpoint.stop()
