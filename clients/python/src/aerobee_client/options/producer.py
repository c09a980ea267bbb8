"""Define the options of producers, with their defaults and bounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TypedDict

from aerobee_client.credentials import Credentials
from aerobee_client.observing.interceptors import Interceptor
from aerobee_client.options.bounds import MAX_INT32, MAX_INT64, MIB, Bounds, check_bounds
from aerobee_client.tls import Tls
from aerobee_wire import compression
from aerobee_wire.status import invalid_parameter

# (minimum latency, how long to avoid the broker), both in ms. The first matching row applies.
NOT_AVAILABLE_MS: tuple[tuple[int, int], ...] = (
    (15_000, 30_000),
    (5_000, 10_000),
    (3_000, 6_000),
    (1_800, 5_000),
    (550, 2_000),
    (100, 0),
    (50, 0),
)

MAX_TIMEOUT_S = 86_400


class ProducerSettings(TypedDict, total=False):
    """The keyword arguments of a producer; ProducerOptions describes them."""

    send_timeout: timedelta
    retries: int
    retry_another_broker_when_not_store_ok: bool
    max_message_size: int
    default_queue_count: int
    latency_fault: bool
    latency_table: Sequence[tuple[timedelta, timedelta]]
    latency_detector: bool
    detect_interval: timedelta
    detect_timeout: timedelta
    accumulate: bool
    interceptors: Sequence[Interceptor]
    enable_trace: bool
    tls: Tls | None
    credentials: Credentials | None
    compression: str | None
    compress_over: int
    compression_level: int
    max_pending_messages: int
    max_pending_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerOptions:
    """The options of a producer, with RocketMQ's defaults except for `send_timeout`.

    Raises MqError with the code INVALID_PARAMETER, whose text names the bounds.
    """

    # The time limit of a whole send, including retries; at most one day. RocketMQ's default is 3 s.
    # If the host of a master vanishes, another broker is master after about 5 s: the lease
    # (etcdLeaseTtl, 4 s) and the election. The default is twice that.
    send_timeout: timedelta = timedelta(seconds=10)
    # Additional attempts after a refusal that may be specific to one broker.
    retries: int = 2
    # Whether to send a message to another broker if the first broker has stored it, but cannot
    # confirm that it is durable (FLUSH_DISK_TIMEOUT) or replicated (FLUSH_SLAVE_TIMEOUT). The
    # message may then be delivered twice.
    retry_another_broker_when_not_store_ok: bool = False
    # The maximum size of a body in bytes. The broker's maxMessageSize has the same default.
    max_message_size: int = 4 * MIB
    # Queues per broker for a topic that the first send creates.
    default_queue_count: int = 4
    # Whether to avoid brokers for a while after failures or slow answers.
    latency_fault: bool = False
    # (minimum latency, how long to avoid the broker), in any order. A failed request counts as 10
    # s.
    latency_table: Sequence[tuple[timedelta, timedelta]] = tuple(
        (timedelta(milliseconds=latency), timedelta(milliseconds=pause))
        for latency, pause in NOT_AVAILABLE_MS
    )
    # Whether to probe unreachable brokers. A broker that answers is used again at once.
    latency_detector: bool = False
    # With latency_detector: the time between two probes of a broker.
    detect_interval: timedelta = timedelta(seconds=2)
    # With latency_detector: the time that a probe waits for the answer.
    detect_timeout: timedelta = timedelta(milliseconds=200)
    # Whether single sends that arrive while a request is in flight share the next request.
    accumulate: bool = True
    # Interceptors, called in this order before the send of a message and in reverse order after it.
    interceptors: Sequence[Interceptor] = ()
    # If true, each send, recall and end of a transaction is written to the topic
    # RMQ_SYS_TRACE_TOPIC, as RocketMQ's clients do. A broker creates it with traceTopicEnable=true.
    # Records travel in the background, and are dropped while no broker accepts them.
    enable_trace: bool = False
    # The certificates for TLS to name servers and brokers. Default: those of the environment, else
    # plaintext.
    tls: Tls | None = None
    # The user who signs the calls. Default: that of the environment, else calls are not signed.
    credentials: Credentials | None = None
    # "zlib", "lz4" or "zstd" compresses bodies if that makes them shorter. The last two need the
    # extra: pip install 'aerobee-client[compression]'.
    compression: str | None = None
    # The minimum size of a body to compress, in bytes.
    compress_over: int = 4_096
    # From 1 (fast) to 9 (small), or 22 with zstd. lz4 ignores the level.
    compression_level: int = 5
    # The maximum number of messages that wait for an answer, for all kinds of sends. Of a batch,
    # only the requests in flight count. At the limit, sends wait.
    max_pending_messages: int = 65_536
    # The same limit in bytes, of their bodies and properties.
    max_pending_bytes: int = 32 * MIB

    def __post_init__(self) -> None:
        check_bounds(self, _PRODUCER_BOUNDS)
        self._check_latency()
        if self.compression is not None:
            compression.check_method(self.compression)
            highest = _HIGHEST_LEVEL[self.compression]
            check_bounds(self, {"compression_level": (1, highest)})

    @property
    def latency_table_ms(self) -> list[tuple[int, int]]:
        """The option `latency_table` in milliseconds, with the longest latency first."""
        ms = timedelta(milliseconds=1)
        return sorted(((each // ms, pause // ms) for each, pause in self.latency_table))[::-1]

    def _check_latency(self) -> None:
        if self.latency_detector and not self.latency_fault:
            raise invalid_parameter(
                "latency_detector asks brokers that latency_fault avoids: give latency_fault=True",
                about="latency_detector",
            )
        if any(min(row) < timedelta(0) for row in self.latency_table):
            raise invalid_parameter(
                f"latency_table is {self.latency_table}: give times from 0 on",
                about="latency_table",
            )


_HIGHEST_LEVEL = {compression.ZLIB: 9, compression.LZ4: 9, compression.ZSTD: 22}
_PRODUCER_BOUNDS: Bounds = {
    "send_timeout": (0.001, MAX_TIMEOUT_S),
    "detect_interval": (0.1, 86_400),  # seconds
    "detect_timeout": (0.001, 60),  # seconds
    "retries": (0, MAX_INT32),
    "max_message_size": (1, MAX_INT32),
    "default_queue_count": (1, MAX_INT32),
    "compress_over": (1, MAX_INT32),
    "max_pending_messages": (1, MAX_INT32),
    "max_pending_bytes": (1, MAX_INT64),
}
