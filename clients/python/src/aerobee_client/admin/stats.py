"""Read and watch the history of brokers, topics and groups: part of AsyncAdminClient.

A value that is not known is None, never 0. Rates are per second, and latencies are milliseconds.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from math import isnan

from aerobee.broker.v1 import admin_pb2

from aerobee_client.admin.brokers import BrokerAdmin, Brokers, numbers_fit
from aerobee_client.runtime.kinds import checked_class
from aerobee_cluster.transport import Transport
from aerobee_wire import rpcs
from aerobee_wire.status import Code, MqError, invalid_parameter

TOPIC_FIGURES = ("messages_in", "bytes_in", "messages_out", "bytes_out")
GROUP_FIGURES = ("messages_out", "bytes_out", "dead_lettered", "redelivered", "lag")
BROKER_FIGURES = (
    *TOPIC_FIGURES,
    *("dead_lettered", "redelivered", "lag", "send_latency_p50_ms", "send_latency_p99_ms"),
)
PERIODS = ("second", "minute", "hour")
# Percentiles of brokers cannot be added up.
_NO_SUMS = {"send_latency_p50_ms", "send_latency_p99_ms"}
MAX_NAMES = 1_000
# Between two looks at the name servers, and two changes of the names that brokers report.
REFRESH_S = 5.0
RETRY_S = 1.0
SAMPLE_S = 0.9  # the least time between two samples
STALE_S = 5.0  # a broker that has sent nothing for this long does not answer
GATHER_S = 0.1  # all brokers send their values at about the same time

Series = Mapping[str, tuple[float | None, ...]]  # figure → values, oldest first
Values = Mapping[str, float | None]  # figure → value


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """The history of some figures.

    Attributes:
        cluster: The sums over the brokers, by figure, oldest first. A sum is None if the value of
            a broker is not known. Latencies have no sum.
        by_broker: The values of each broker, by broker name and figure.
    """

    cluster: Series
    by_broker: Mapping[str, Series]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stats:
    """The history of the brokers, and of the requested topics and groups.

    Attributes:
        period_ms: The length of the period of one value.
        end_timestamp_ms: The end of the last period, in milliseconds since the epoch. None if no
            broker has recorded a value yet.
        brokers: The history of the brokers.
        topics: The history of each topic that a broker has.
        groups: The history of each group that a broker has.
        omitted: The number of active topics and groups whose history is unknown, because a broker
            has no room for it, by broker name.
        unanswered: The reason why each broker did not answer, by broker name.
    """

    period_ms: int
    end_timestamp_ms: int | None
    brokers: History
    topics: Mapping[str, History]
    groups: Mapping[str, History]
    omitted: Mapping[str, int]
    unanswered: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """The values of some figures in one second.

    Attributes:
        cluster: The sums over the brokers, by figure. A sum is None if the value of a broker is
            not known. Latencies have no sum.
        by_broker: The values of each broker, by broker name and figure.
    """

    cluster: Values
    by_broker: Mapping[str, Values]


@dataclass(frozen=True, slots=True, kw_only=True)
class StatsSample:
    """The values of the brokers, topics and groups in the last second.

    Attributes:
        end_timestamp_ms: The end of the second at each broker, by broker name, in milliseconds
            since the epoch.
        brokers: The values of the brokers.
        topics: The values of topics, by name.
        groups: The values of groups, by name.
        omitted: See Stats.
        unanswered: The reason why each broker does not answer, by broker name.
    """

    end_timestamp_ms: Mapping[str, int]
    brokers: Sample
    topics: Mapping[str, Sample]
    groups: Mapping[str, Sample]
    omitted: Mapping[str, int]
    unanswered: Mapping[str, str]


@checked_class
class StatsAdmin(BrokerAdmin):
    async def get_stats(
        self, *, topics: Sequence[str] = (), groups: Sequence[str] = (), period: str = "second"
    ) -> Stats:
        """Return the history of the brokers, and of topics and groups. Asks each broker once.

        Args:
            topics: The topics to include.
            groups: The consumer groups to include; at most 1,000 topics and groups in all.
            period: "second" for the last 60 s, "minute" for 120 minutes, "hour" for 48 hours.

        Returns:
            The history. `unanswered` names the brokers that did not answer.

        Raises:
            MqError: INVALID_PARAMETER, or the failure of a broker if no broker answers.
        """
        if period not in PERIODS:
            raise invalid_parameter(
                f"invalid period {period!r}: choose one of {', '.join(PERIODS)}", about="period"
            )
        request = admin_pb2.GetStatsRequest(
            period=f"STATS_PERIOD_{period.upper()}", topics=topics, groups=groups
        )
        masters, missing = await self._brokers.masters_and_missing()
        answers, silent = await self._brokers.ask_answering(masters, rpcs.GET_STATS, request)
        if not answers:
            raise next(iter(silent.values()))
        unanswered = missing | silent
        ends = [
            each.end_timestamp_ms for each in answers.values() if each.HasField("end_timestamp_ms")
        ]
        align = _Aligning(min(ends, default=None), complete=not unanswered)
        return Stats(
            period_ms=next(iter(answers.values())).period_ms,
            end_timestamp_ms=align.end_ms,
            brokers=align.history(
                {name: (each, each.broker) for name, each in answers.items()}, BROKER_FIGURES
            ),
            topics=align.histories(answers, topics, "topics", TOPIC_FIGURES),
            groups=align.histories(answers, groups, "groups", GROUP_FIGURES),
            omitted={name: each.omitted for name, each in answers.items() if each.omitted},
            unanswered={name: unanswered[name].message for name in sorted(unanswered)},
        )

    async def watch_stats(
        self,
        *,
        topics: Sequence[str] = (),
        groups: Sequence[str] = (),
        busiest_topics: int = 0,
        busiest_groups: int = 0,
    ) -> AsyncGenerator[StatsSample, None]:
        """Yield the values of the last second, once a second. Opens one stream to each broker.

        A broker that does not answer is in `StatsSample.unanswered`, and is asked again.

        Args:
            topics: The topics to include.
            groups: The consumer groups to include.
            busiest_topics: How many topics of each broker with the most messages to include.
            busiest_groups: How many groups of each broker with the most messages to include.

        Yields:
            The values.

        Raises:
            MqError: INVALID_PARAMETER, or the failure of the name servers at the begin.
        """
        with numbers_fit():
            request = admin_pb2.WatchStatsRequest(
                topics=topics,
                groups=groups,
                busiest_topics=busiest_topics,
                busiest_groups=busiest_groups,
            )
        if min(busiest_topics, busiest_groups) < 0 or len(topics) + len(groups) > MAX_NAMES:
            raise invalid_parameter(
                f"ask for 0 or more of the busiest, and for at most {MAX_NAMES} topics and groups"
            )
        watching = _Watching(self._brokers, self._instance.transport, request)
        try:
            await watching.refresh()
            while True:
                await watching.arrivals()
                yield watching.sample()
        finally:
            await watching.close()


@dataclass(frozen=True, slots=True)
class _Aligning:
    """Merges histories of brokers that end at different times: the earliest end counts."""

    end_ms: int | None
    complete: bool

    def histories(
        self,
        answers: Mapping[str, admin_pb2.GetStatsResponse],
        names: Iterable[str],
        attribute: str,
        figures: Sequence[str],
    ) -> dict[str, History]:
        found: dict[str, dict[str, tuple[admin_pb2.GetStatsResponse, admin_pb2.StatsSubject]]] = {}
        for broker_name, answer in answers.items():
            for subject in getattr(answer, attribute):
                found.setdefault(subject.name, {})[broker_name] = answer, subject
        return {name: self.history(found[name], figures) for name in names if name in found}

    def history(
        self,
        parts: Mapping[str, tuple[admin_pb2.GetStatsResponse, admin_pb2.StatsSubject]],
        figures: Sequence[str],
    ) -> History:
        by_broker = {
            name: {series.figure: self._aligned(answer, series.values) for series in subject.series}
            for name, (answer, subject) in parts.items()
        }
        count = max((len(each) for part in by_broker.values() for each in part.values()), default=0)
        unknown = (None,) * count
        cluster = {
            figure: tuple(
                map(
                    lambda *values, figure=figure: _sum(figure, values, complete=self.complete),
                    *(part.get(figure, unknown) for part in by_broker.values()),
                )
            )
            for figure in figures
        }
        return History(cluster=cluster, by_broker=by_broker)

    def _aligned(
        self, answer: admin_pb2.GetStatsResponse, values: Sequence[float]
    ) -> tuple[float | None, ...]:
        """Return the values up to `end_ms`, with unknown ones in front."""
        later = 0
        if self.end_ms is not None and answer.HasField("end_timestamp_ms"):
            later = (answer.end_timestamp_ms - self.end_ms) // answer.period_ms
        later = min(later, len(values))
        known = [_known(value) for value in values]
        return (*(None,) * later, *known[: len(known) - later])


def _known(value: float) -> float | None:
    return None if isnan(value) else value


def _sum(figure: str, values: Sequence[float | None], *, complete: bool) -> float | None:
    if not complete or figure in _NO_SUMS or None in values:
        return None
    return sum(value for value in values if value is not None)


@dataclass(slots=True, eq=False)
class _Stream:
    """The stream of one broker. `latest` is its last answer, or None if it does not answer."""

    address: str
    request: admin_pb2.WatchStatsRequest
    task: asyncio.Task[None]
    latest: admin_pb2.WatchStatsResponse | None = None
    arrived_s: float = 0.0  # when `latest` came, by the clock of the loop
    error: MqError | None = None

    def is_asked_for(self, kind: str, name: str) -> bool:
        """Return whether the broker reports a topic or group of this name if it has it."""
        return name in getattr(self.request, kind)


class _Watching:
    """One stream to each broker, opened again when it ends.

    Each broker chooses its own busiest topics and groups. So that their sums are known, the names
    that one broker reports are requested from the others too.
    """

    def __init__(
        self, brokers: Brokers, transport: Transport, request: admin_pb2.WatchStatsRequest
    ) -> None:
        self._brokers, self._transport, self._request = brokers, transport, request
        self._streams: dict[str, _Stream] = {}
        self._missing: dict[str, MqError] = {}
        self._arrived = asyncio.Event()
        self._refreshed_s = self._sampled_s = 0.0

    async def refresh(self) -> None:
        """Look for brokers that came or left, and request the names that some of them lack."""
        masters, self._missing = await self._brokers.masters_and_missing()
        self._refreshed_s = asyncio.get_running_loop().time()
        wanted = self._wanted()
        for name in set(self._streams) - set(masters):
            await self._end(self._streams.pop(name))
        for name, address in masters.items():
            stream = self._streams.get(name)
            if stream is not None and (stream.address, stream.request) == (address, wanted):
                continue
            opened = self._open(name, address, wanted)
            if stream is not None:
                # Its values stay until the new stream has some.
                opened.latest, opened.error = stream.latest, stream.error
                opened.arrived_s = stream.arrived_s
                await self._end(stream)
            self._streams[name] = opened

    async def arrivals(self) -> None:
        """Wait for the values of a second, which come within a moment from all brokers."""
        loop = asyncio.get_running_loop()
        if loop.time() - self._refreshed_s >= REFRESH_S:
            try:
                await self.refresh()
            except MqError:  # the streams are still open
                self._refreshed_s = loop.time()
        until_s = loop.time() + STALE_S
        while loop.time() < until_s:
            self._arrived.clear()
            try:
                async with asyncio.timeout_at(until_s):
                    await self._arrived.wait()
            except TimeoutError:
                break
            # Brokers whose seconds end at different times do not make more samples.
            if loop.time() - self._sampled_s >= SAMPLE_S:
                await asyncio.sleep(GATHER_S)
                break
        self._sampled_s = loop.time()

    def sample(self) -> StatsSample:
        oldest_s = asyncio.get_running_loop().time() - STALE_S
        answers = {
            name: stream.latest
            for name, stream in self._streams.items()
            if stream.latest is not None and stream.arrived_s > oldest_s
        }
        errors = self._missing | {
            name: stream.error
            or MqError(
                Code.REQUEST_TIMEOUT, f"broker {name} has sent no values for {STALE_S:g} s or more"
            )
            for name, stream in self._streams.items()
            if name not in answers
        }
        brokers = {
            name: dict(_values(BROKER_FIGURES, each.broker)) for name, each in answers.items()
        }
        return StatsSample(
            end_timestamp_ms={name: each.end_timestamp_ms for name, each in answers.items()},
            brokers=Sample(
                cluster=_cluster(BROKER_FIGURES, brokers.values(), complete=not errors),
                by_broker=brokers,
            ),
            topics=self._samples(answers, "topics", TOPIC_FIGURES, complete=not errors),
            groups=self._samples(answers, "groups", GROUP_FIGURES, complete=not errors),
            omitted={name: each.omitted for name, each in answers.items() if each.omitted},
            unanswered={name: errors[name].message for name in sorted(errors)},
        )

    async def close(self) -> None:
        for stream in self._streams.values():
            await self._end(stream)

    def _samples(
        self,
        answers: Mapping[str, admin_pb2.WatchStatsResponse],
        kind: str,
        figures: Sequence[str],
        *,
        complete: bool,
    ) -> dict[str, Sample]:
        rows: dict[str, dict[str, Values]] = {}
        for name, answer in answers.items():
            for row in getattr(answer, kind):
                rows.setdefault(row.name, {})[name] = _values(figures, row)
        return {
            name: Sample(
                cluster=_cluster(
                    figures,
                    parts.values(),
                    complete=complete
                    and all(
                        broker in parts or self._streams[broker].is_asked_for(kind, name)
                        for broker in answers
                    ),
                ),
                by_broker=parts,
            )
            for name, parts in sorted(rows.items())
        }

    def _wanted(self) -> admin_pb2.WatchStatsRequest:
        """Return the request with the names that the brokers report now."""
        wanted = admin_pb2.WatchStatsRequest()
        wanted.CopyFrom(self._request)
        if len(self._streams) < 2:
            return wanted
        for kind in ("topics", "groups"):
            found = {
                row.name
                for stream in self._streams.values()
                if stream.latest is not None
                for row in getattr(stream.latest, kind)
            }
            names = getattr(wanted, kind)
            room = MAX_NAMES - len(wanted.topics) - len(wanted.groups)
            names.extend(sorted(found - set(names))[:room])
        return wanted

    def _open(self, name: str, address: str, request: admin_pb2.WatchStatsRequest) -> _Stream:
        async def read() -> None:
            while True:
                try:
                    answers = self._transport.stream(address, rpcs.WATCH_STATS, request)
                    async with aclosing(answers):
                        async for answer in answers:
                            stream.latest, stream.error = answer, None
                            stream.arrived_s = asyncio.get_running_loop().time()
                            self._arrived.set()
                    error = MqError(Code.BROKER_UNREACHABLE, f"broker {name} has ended the stream")
                except MqError as failure:
                    error = failure
                stream.latest, stream.error = None, error
                self._arrived.set()
                await asyncio.sleep(RETRY_S)

        stream = _Stream(address, request, asyncio.create_task(read()))
        return stream

    @staticmethod
    async def _end(stream: _Stream) -> None:
        stream.task.cancel()
        await asyncio.wait([stream.task])


def _values(figures: Sequence[str], row: admin_pb2.WatchStatsResponse.Row) -> Values:
    return dict(zip(figures, map(_known, row.values), strict=True))


def _cluster(figures: Iterable[str], parts: Iterable[Values], *, complete: bool) -> Values:
    listed = list(parts)
    return {
        figure: _sum(figure, [part[figure] for part in listed], complete=complete and bool(listed))
        for figure in figures
    }
