"""Compute the lag of a stream from Spark's query progress.

The lag is the number of unread messages of each queue. `of` computes it. `LagListener` logs it and
serves it as a Prometheus gauge. It also commits finished offsets to a consumer group, where
`aerobee group progress` shows them. Queries do not use these offsets, because they start from their
checkpoints.

Example:
    listener = LagListener(port=9100, progressGroup="etl", nameServer="127.0.0.1:9876")
    spark.streams.addListener(listener)
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.streaming.listener import StreamingQueryListener

from aerobee_spark.errors import CheckpointError, MqError
from aerobee_spark.reading.offsets import Queue
from aerobee_spark.stream.positions import Positions

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import (
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
    )

    from aerobee_client import AdminClient

log = logging.getLogger(__name__)

GAUGE = "rocketmq_spark_lag_messages"


@dataclass(frozen=True, slots=True)
class Lag:
    """The number of messages in each queue that a stream had not read at the last trigger."""

    by_queue: Mapping[Queue, int]

    @property
    def total(self) -> int:
        return sum(self.by_queue.values())


def of(progress: Any) -> Lag:
    """Return the lag of a query, over all its sources of the format "rocketmq".

    A source counts as 0 unread messages before it has looked up the ends of its queues.

    Args:
        progress: a StreamingQueryProgress, or its JSON as a mapping.

    Returns:
        The number of unread messages of each queue.

    Example:
        of(query.lastProgress).total
    """
    behind: dict[Queue, int] = {}
    for end, latest in _sources(progress):
        for queue, last in latest.of.items():
            behind[queue] = behind.get(queue, 0) + max(0, last - end.of.get(queue, last))
    return Lag(behind)


def finished(progress: Any) -> dict[Queue, int]:
    """Return the offset after the last message that the reported batch read from each queue."""
    return {queue: offset for end, _ in _sources(progress) for queue, offset in end.of.items()}


def _sources(progress: Any) -> Iterator[tuple[Positions, Positions]]:
    """Yield (end of the batch, ends of the queues) for each source of the format "rocketmq"."""
    sources = progress["sources"] if isinstance(progress, Mapping) else progress.sources
    for source in sources:
        names = ("endOffset", "latestOffset")
        end, latest = (
            _positions(source[name] if isinstance(source, Mapping) else getattr(source, name))
            for name in names
        )
        if end is not None and latest is not None:
            yield end, latest


def _positions(value: Any) -> Positions | None:
    """Parse the offsets of a source in a progress report.

    Return None if the source has another format, or has no offsets yet.
    """
    try:
        loaded = json.loads(value) if isinstance(value, str) else value
        return Positions.parse(loaded) if isinstance(loaded, Mapping) else None
    except (ValueError, CheckpointError):
        return None


class LagListener(StreamingQueryListener):
    """A query listener that publishes the lag of streams of the format "rocketmq".

    Args:
        port: TCP port on which to serve the gauge `rocketmq_spark_lag_messages`, with the labels
            `query`, `topic`, `broker_name` and `queue_id`. 0 chooses a free port, which
            `listener.port` then holds. If None, the gauge is not served.
        host: address on which to serve the gauge.
        progressGroup: existing consumer group to which each batch commits its finished offsets.
            If empty, offsets are not committed.
        nameServer: name servers of the group, as "host:port;host:port".
        queryName: name of the query to publish. If None, all queries are published.

    Raises:
        MqError: the group does not exist, or no name server is available.

    Example:
        spark.streams.addListener(LagListener(port=9100))
    """

    def __init__(
        self,
        *,
        port: int | None = None,
        host: str = "127.0.0.1",
        progressGroup: str = "",
        nameServer: str = "",
        queryName: str | None = None,
    ) -> None:
        self.port = port
        self._query_name = queryName
        self._group = progressGroup
        self._admin: AdminClient | None = None
        self._metrics: _Metrics | None = None
        try:
            if progressGroup:
                from aerobee_spark.reading.planning import connect

                self._admin = connect(nameServer)
                self._admin.get_group(progressGroup)
            if port is not None:
                self._metrics = _Metrics(host, port)
                self.port = self._metrics.port
        except BaseException:
            self.close()
            raise

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        pass

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        progress = event.progress
        if self._query_name is not None and progress.name != self._query_name:
            return
        lag, name = of(progress), progress.name or str(progress.id)
        log.info("query %s is %d messages behind after batch %d", name, lag.total, progress.batchId)
        if self._metrics is not None:
            self._metrics.show(name, lag)
        if self._admin is not None:
            self._commit(finished(progress))

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        pass

    def close(self) -> None:
        """Stop the metrics server and close the connections to brokers."""
        if self._metrics is not None:
            self._metrics.close()
        if self._admin is not None:
            self._admin.close()

    def _commit(self, offsets: Mapping[Queue, int]) -> None:
        """Commit finished offsets to the consumer group. If the commit fails, log a warning.

        A failure does not stop the query, because the offsets are only for display.
        """
        assert self._admin is not None
        try:
            self._admin.commit_offsets(
                self._group,
                {(each.topic, each.broker_name, each.queue_id): at for each, at in offsets.items()},
            )
        except MqError as error:
            log.warning("cannot commit progress to group %s: %s", self._group, error.message)


class _Metrics:
    """The Prometheus gauge of the lag, and the HTTP server that serves it."""

    def __init__(self, host: str, port: int) -> None:
        from prometheus_client import CollectorRegistry, Gauge, start_http_server

        registry = CollectorRegistry()
        labels = ("query", "topic", "broker_name", "queue_id")
        about = "Messages that a streaming query has yet to read."
        self._gauge = Gauge(GAUGE, about, labels, registry=registry)
        self._shown: dict[str, set[Queue]] = {}  # by query
        self._server, self._thread = start_http_server(port, addr=host, registry=registry)
        self.port = int(self._server.server_port)

    def show(self, name: str, lag: Lag) -> None:
        """Set the gauge of each queue of a query. Remove queues that no longer exist."""
        before, self._shown[name] = self._shown.get(name, set()), set(lag.by_queue)
        for queue in before - self._shown[name]:
            self._gauge.remove(name, *map(str, queue))
        for queue, behind in lag.by_queue.items():
            self._gauge.labels(name, *map(str, queue)).set(behind)

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
