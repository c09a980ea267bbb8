"""What observing costs a producer of the Python client: single sends of 1 KiB with interceptors
that do nothing, and with OpenTelemetry (traces of which few are sampled, and metrics), against the
same without. Real processes: namesrv, broker.
"""

from __future__ import annotations

import random
import tempfile

from opentelemetry import trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON, ParentBased, TraceIdRatioBased

from aerobee_client import AsyncAdminClient, AsyncProducer, otel
from bench.clients.producers import QUEUES, TOPIC, single
from bench.measure import Operation, Result, compare
from bench.startup import started, up

IN_FLIGHT = 1_024
ROUNDS = 15
SAMPLED = 0.01
REQUESTS = 1_000  # traces that sends belong to


async def results() -> list[Result]:
    with tempfile.TemporaryDirectory() as data:
        async with started("-m", "aerobee_cli", *up(data)) as (_, line):
            namesrv = dict(item.split("=") for item in line.split()[1:])["namesrv"]
            async with AsyncAdminClient(namesrv) as admin:
                await admin.create_topic(TOPIC, queues=QUEUES)
            return [await empty(namesrv), await sampled(namesrv)]


async def empty(namesrv: str) -> Result:
    async with (
        AsyncProducer(namesrv=namesrv, interceptors=()) as ours,
        AsyncProducer(namesrv=namesrv) as other,
    ):
        return await compare(
            "client_interceptors_empty",
            single(ours),
            single(other),
            in_flight=IN_FLIGHT,
            target=0.99,
            rounds=ROUNDS,
            note=f"no interceptors, {IN_FLIGHT} sends awaited at a time, against no option at all",
        )


async def sampled(namesrv: str) -> Result:
    """Each send belongs to a request of the application, whose trace is sampled or not."""
    provider = TracerProvider(sampler=ParentBased(TraceIdRatioBased(SAMPLED)))
    requests = [
        TracerProvider(sampler=sampler).get_tracer("bench").start_span("request")
        for sampler, share in ((ALWAYS_ON, SAMPLED), (ALWAYS_OFF, 1 - SAMPLED))
        for _ in range(round(REQUESTS * share))  # just so many: the sampler would take 5 to 16
    ]
    async with AsyncProducer(namesrv=namesrv) as ours, AsyncProducer(namesrv=namesrv) as other:
        meters = MeterProvider(metric_readers=[InMemoryMetricReader()])
        otel.instrument(ours, tracer_provider=provider, meter_provider=meters)
        return await compare(
            "client_otel_sampled",
            within(requests, single(ours)),
            within(requests, single(other)),
            in_flight=IN_FLIGHT,
            target=0.85,
            rounds=ROUNDS,
            note=f"OpenTelemetry, {SAMPLED:.0%} of the requests sampled, metrics; against none",
        )


def within(requests: list[trace.Span], send: Operation) -> Operation:
    async def handle() -> int:
        with trace.use_span(random.choice(requests)):
            return await send()

    return handle
