"""Metrics and spans that are pushed: to a receiver that comes, goes and rejects, or to the log."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import grpc
import pytest
import structlog
from aerobee.broker.v1.message_pb2 import Message, SendRequest, SendResponse
from structlog.testing import capture_logs

from aerobee_broker.cluster.identity import free_port
from aerobee_chassis.clock import SystemClock
from aerobee_chassis.config import Options
from aerobee_chassis.metrics.push import OtlpSender, PushExporter
from aerobee_chassis.metrics.series import Kind, Metric, Registry
from aerobee_chassis.otlp.receiver import ExportFailed, Receiver
from aerobee_cli.authority import Authority
from support.clock.polling import until_sync
from support.observing.otlp import CLASSES, attributes, metrics_of, otlp_receiver
from support.processes.service import broker_process

SENT = Metric("sent_total", Kind.COUNTER, "Sent.", ("topic",))
TRACED = Message(
    topic="orders",
    body=b"x",
    properties={"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"},
)


def test_an_export_that_fails_is_logged_once_and_its_changes_arrive_later() -> None:
    port = free_port("127.0.0.1")
    options = Options.from_values(
        {
            "metricsExporterType": "OTLP_GRPC",
            "metricsGrpcExporterTarget": f"http://127.0.0.1:{port}",
            "metricsGrpcExporterHeader": "X-Token: secret",
            "metricsInDelta": "true",
        }
    )
    registry = Registry({"cluster": "c"})
    sent = registry.series(SENT)
    exporter = PushExporter(options, registry, SystemClock())
    send = OtlpSender(options, registry.labels)
    sent.add(2, "t")
    with capture_logs() as logs:
        exporter.export(send)
        exporter.export(send)
        assert [each["event"] for each in logs] == ["metrics_not_exported"]
        with otlp_receiver(port) as (receiver, _):
            sent.add(1, "t")
            exporter.export(send)
            sent.add(4, "t")
            rejected = CLASSES["Answer"]()
            rejected.partial_success.error_message = "no"
            receiver.answer = rejected.SerializeToString()
            exporter.export(send)
    points = [metrics_of(request)["sent_total"].sum.data_points for request, _ in receiver.requests]
    assert [each[0].as_int for each in points] == [3, 4]
    assert points[0][0].time_unix_nano == points[1][0].start_time_unix_nano
    assert receiver.requests[0][1]["x-token"] == "secret"
    assert [each["event"] for each in logs][1:] == ["metrics_rejected"]
    structlog.reset_defaults()


def test_a_broker_exports_metrics_and_spans_also_when_it_stops(tmp_path: Path) -> None:
    with otlp_receiver() as (receiver, port):
        arguments = (
            "--set=metricsExporterType=OTLP_GRPC",
            f"--set=metricsGrpcExporterTarget=http://127.0.0.1:{port}",
            "--set=metricGrpcExporterIntervalInMills=100",
            "--set=metricsLabel=zone:a",
            f"--set=otlpEndpoint=http://127.0.0.1:{port}",
            "--set=otlpHeader=X-Token: secret",
        )
        with broker_process(tmp_path, *arguments) as broker:
            until_sync(lambda: bool(receiver.requests), "an export")
            assert "metrics" not in broker.ready
            before = len(receiver.requests)
            with grpc.insecure_channel(broker.address) as channel:
                send = channel.unary_unary(
                    "/aerobee.broker.v1.MessageService/Send",
                    SendRequest.SerializeToString,
                    SendResponse.FromString,
                )
                send(SendRequest(messages=[TRACED]))
        assert [span.name for span in receiver.spans] == ["send orders", "store orders"]
        send_span, store_span = receiver.spans
        assert store_span.parent_span_id == send_span.span_id
        assert send_span.parent_span_id.hex() == "b7ad6b7169203331"
        assert len(receiver.requests) > before
    found = metrics_of(receiver.requests[-1][0])
    [point] = found["aerobee_insecure"].gauge.data_points
    assert attributes(point)["zone"] == "a"
    assert attributes(point)["node_id"] == "broker-a"
    counted = {attributes(each)["result"] for each in found["aerobee_spans_total"].sum.data_points}
    assert counted == {"exported", "dropped_full", "dropped_failed"}
    assert "rocketmq_parked_pulls" not in found  # former names are for Prometheus


def test_a_broker_logs_its_metrics(tmp_path: Path) -> None:
    arguments = ("--set=metricsExporterType=LOG", "--set=metricLoggingExporterIntervalInMills=100")
    with broker_process(tmp_path, *arguments) as broker:
        until_sync(lambda: bool(broker.events("metric")), "metrics in the log")
        metrics = {event["metric"]: event for event in broker.events("metric")}
    insecure = metrics["aerobee_insecure"]
    assert (insecure["type"], insecure["points"]) == ("gauge", [{"value": 0}])


def test_a_receiver_over_tls_needs_a_certificate_that_the_system_trusts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("known", "stranger"):
        Authority(tmp_path / name, datetime.now(UTC)).init("C", "b", ["localhost"], 1)
    key, certificate = ((tmp_path / f"known/proxy.{end}").read_bytes() for end in ("key", "crt"))
    credentials = grpc.ssl_server_credentials([(key, certificate)])
    path = "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export"
    with otlp_receiver(0, credentials) as (receiver, port):
        exporter = Receiver(f"https://localhost:{port}", {"x-token": "secret"}, timeout_s=20)
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "known/ca.crt"))
        assert list(exporter.export(path, [b"1", b"2"])) == ["", ""]
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "stranger/ca.crt"))
        with pytest.raises(ExportFailed, match="CERTIFICATE_VERIFY_FAILED"):
            list(exporter.export(path, [b"3"]))
    assert [request for request, _ in receiver.requests] == [b"1", b"2"]
    assert receiver.requests[0][1]["x-token"] == "secret"
