"""The metrics of a broker: names, types, units, labels and meaning.

docs/metrics.md is written from this table, and from RocketMQ's in docs/rocketmq_metrics.toml.
"""

from __future__ import annotations

from aerobee_chassis.metrics.series import Kind, Metric

_COUNTER, _GAUGE, _HISTOGRAM = Kind.COUNTER, Kind.GAUGE, Kind.HISTOGRAM
_MS, _BYTES = "milliseconds", "bytes"
_STORAGE = ("storage_type", "storage_medium")
_LAG = ("consumer_group", "topic", "is_retry", "is_system")
_SIZES = (1 << 10, 4 << 10, 512 << 10, 1 << 20, 2 << 20, 4 << 20)
_CREATE_MS = (10, 100, 1_000, 3_000, 5_000)
_CALL_MS = (1, 3, 5, 7, 10, 100, 1_000, 2_000, 3_000)
_FINISH_MS = (5_000, 60_000, 600_000, 3_600_000, 43_200_000, 86_400_000)
_DELAY_S = (60, 600, 3_600, 43_200, 86_400, 259_200)
_LATENESS_S = (0.001, 0.005, 0.02, 0.1, 0.5, 1, 5, 30, 300)

# ---- names of RocketMQ ----

BROKER_PERMISSION = Metric(
    "rocketmq_broker_permission", _GAUGE, "6: readable and writable; 4: readable; 2: writable."
)
TOPIC_NUMBER = Metric("rocketmq_topic_number", _GAUGE, "Topics, with those of the system.")
CONSUMER_GROUP_NUMBER = Metric("rocketmq_consumer_group_number", _GAUGE, "Consumer groups.")
PROCESSOR_WATERMARK = Metric(
    "rocketmq_processor_watermark",
    _GAUGE,
    "Calls whose request waits to be read: of RPCs that may have large requests, and others.",
    ("processor",),
)
MESSAGES_IN = Metric(
    "rocketmq_messages_in_total",
    _COUNTER,
    "Messages stored for producers.",
    ("topic", "message_type", "is_system"),
)
THROUGHPUT_IN = Metric(
    "rocketmq_throughput_in_total",
    _COUNTER,
    "Bytes of the bodies of these messages.",
    ("topic", "message_type", "is_system"),
)
MESSAGE_SIZE = Metric(
    "rocketmq_message_size",
    _HISTOGRAM,
    "Bytes of a body: one value for each request, the mean of its messages.",
    ("topic", "message_type", "is_system"),
    buckets=_SIZES,
)
MESSAGES_OUT = Metric(
    "rocketmq_messages_out_total",
    _COUNTER,
    "Messages delivered to consumers.",
    ("topic", "consumer_group", "is_retry", "is_system"),
)
THROUGHPUT_OUT = Metric(
    "rocketmq_throughput_out_total",
    _COUNTER,
    "Bytes of the records of these messages.",
    ("topic", "consumer_group", "is_retry", "is_system"),
)
TOPIC_CREATE_TIME = Metric(
    "rocketmq_topic_create_execution_time",
    _HISTOGRAM,
    "Time to create or change a topic on request.",
    ("invocation_status", "is_system"),
    _MS,
    _CREATE_MS,
)
GROUP_CREATE_TIME = Metric(
    "rocketmq_consumer_group_create_execution_time",
    _HISTOGRAM,
    "Time to create or change a consumer group on request.",
    ("invocation_status",),
    _MS,
    _CREATE_MS,
)
PRODUCER_CONNECTIONS = Metric(
    "rocketmq_producer_connections",
    _GAUGE,
    "Clients that send, also those behind proxies.",
    ("language", "version", "protocol_type"),
)
CONSUMER_CONNECTIONS = Metric(
    "rocketmq_consumer_connections",
    _GAUGE,
    "Members of consumer groups, also those behind proxies.",
    ("consumer_group", "language", "version", "consume_mode", "protocol_type", "is_system"),
)
CONSUMER_LAG_MESSAGES = Metric(
    "rocketmq_consumer_lag_messages",
    _GAUGE,
    "Messages that a group has not settled.",
    _LAG,
)
CONSUMER_LAG_LATENCY = Metric(
    "rocketmq_consumer_lag_latency",
    _GAUGE,
    "Age of the oldest message that a group has not settled; 0 if there is none.",
    _LAG,
    _MS,
)
CONSUMER_INFLIGHT_MESSAGES = Metric(
    "rocketmq_consumer_inflight_messages",
    _GAUGE,
    "Messages that members of a group have and have not settled.",
    _LAG,
)
CONSUMER_QUEUEING_LATENCY = Metric(
    "rocketmq_consumer_queueing_latency",
    _GAUGE,
    "Age of the oldest message that no member of a group has; 0 if there is none.",
    _LAG,
    _MS,
)
CONSUMER_READY_MESSAGES = Metric(
    "rocketmq_consumer_ready_messages",
    _GAUGE,
    "Messages that a group has not settled and no member of it has.",
    _LAG,
)
SEND_TO_DLQ = Metric(
    "rocketmq_send_to_dlq_messages_total",
    _COUNTER,
    "Messages that became dead letters.",
    ("consumer_group", "is_system"),
)
HALF_MESSAGES = Metric(
    "rocketmq_half_messages", _GAUGE, "Half messages with an open transaction.", ("topic",)
)
COMMIT_MESSAGES = Metric(
    "rocketmq_commit_messages_total", _COUNTER, "Half messages committed.", ("topic",)
)
ROLLBACK_MESSAGES = Metric(
    "rocketmq_rollback_messages_total", _COUNTER, "Half messages rolled back.", ("topic",)
)
FINISH_MESSAGE_LATENCY = Metric(
    "rocketmq_finish_message_latency",
    _HISTOGRAM,
    "Time from the store of a half message to its commit.",
    ("topic",),
    _MS,
    _FINISH_MS,
)
DELAY_MESSAGE_LATENCY = Metric(
    "rocketmq_delay_message_latency",
    _HISTOGRAM,
    "For how long messages with a delivery time were to wait when they were accepted.",
    ("topic", *_STORAGE),
    "seconds",
    _DELAY_S,
)
STORAGE_SIZE = Metric(
    "rocketmq_storage_size", _GAUGE, "Used bytes of the disk of the store.", _STORAGE, _BYTES
)
STORAGE_FLUSH_BEHIND = Metric(
    "rocketmq_storage_flush_behind_bytes",
    _GAUGE,
    "Bytes appended to the commit log and not flushed.",
    _STORAGE,
    _BYTES,
)
STORAGE_DISPATCH_BEHIND = Metric(
    "rocketmq_storage_dispatch_behind_bytes",
    _GAUGE,
    "Bytes appended to the commit log whose messages are not visible.",
    _STORAGE,
    _BYTES,
)
STORAGE_RESERVE_TIME = Metric(
    "rocketmq_storage_message_reserve_time",
    _GAUGE,
    "Age of the oldest message of the store.",
    _STORAGE,
    _MS,
)
TIMER_ENQUEUE_LAG = Metric(
    "rocketmq_timer_enqueue_lag",
    _GAUGE,
    "Messages of the timer queue that its table does not have yet.",
    _STORAGE,
)
TIMER_ENQUEUE_LATENCY = Metric(
    "rocketmq_timer_enqueue_latency",
    _GAUGE,
    "Age of the first of these messages; 0 if there is none.",
    _STORAGE,
    _MS,
)
TIMER_ENQUEUE_TOTAL = Metric(
    "rocketmq_timer_enqueue_total",
    _COUNTER,
    "Messages with a delivery time that were accepted.",
    ("topic", *_STORAGE),
)
TIMER_DEQUEUE_LAG = Metric(
    "rocketmq_timer_dequeue_lag",
    _GAUGE,
    "Messages that are due and not delivered; at most 10,000 are counted.",
    _STORAGE,
)
TIMER_DEQUEUE_LATENCY = Metric(
    "rocketmq_timer_dequeue_latency",
    _GAUGE,
    "For how long the first of these messages is late; 0 if there is none.",
    _STORAGE,
    _MS,
)
TIMER_DEQUEUE_TOTAL = Metric(
    "rocketmq_timer_dequeue_total",
    _COUNTER,
    "Messages with a delivery time that were delivered to their topic.",
    ("topic", *_STORAGE),
)
TIMING_MESSAGES = Metric(
    "rocketmq_timing_messages",
    _GAUGE,
    "Messages that wait for their own delivery time.",
    _STORAGE,
)
TIMER_SNAPSHOT = Metric(
    "rocketmq_timer_message_snapshot",
    _GAUGE,
    "Messages whose delivery time is between the next lower bound and this bound from now on.",
    ("timer_bound_s", *_STORAGE),
)
POP_CHECKPOINTS = Metric(
    "rocketmq_pop_checkpoint_buffer_size", _GAUGE, "Messages in the lease table."
)
POP_REVIVE_LAG = Metric(
    "rocketmq_pop_revive_lag",
    _GAUGE,
    "Messages whose lease should have ended; at most those of 1,024 deadlines are counted.",
)
POP_REVIVE_LATENCY = Metric(
    "rocketmq_pop_revive_latency",
    _GAUGE,
    "For how long the first of these leases is over; 0 if there is none.",
    unit=_MS,
)
POP_REVIVE_RETRIES = Metric(
    "rocketmq_pop_revive_retry_messages_total",
    _COUNTER,
    "Messages whose lease expired and that became visible again.",
    ("consumer_group", "topic", "put_status"),
)
RPC_LATENCY = Metric(
    "rocketmq_rpc_latency",
    _HISTOGRAM,
    "Time of a unary call in the broker, with its wait for messages.",
    ("protocol_type", "request_code", "response_code", "is_long_polling"),
    _MS,
    _CALL_MS,
)

# ---- names of our own ----

QUEUE_LAG = Metric(
    "aerobee_consumer_queue_lag_messages",
    _GAUGE,
    "Messages of a queue that a group has not settled.",
    ("consumer_group", "topic", "queue_id", "is_retry"),
)
EXPIRED_UNCONSUMED = Metric(
    "aerobee_consumer_expired_messages",
    _GAUGE,
    "Messages that retention has removed between a group's offset and the start of the queue.",
    ("consumer_group", "topic"),
)
GROUP_MEMBERS = Metric(
    "aerobee_consumer_group_members", _GAUGE, "Live members of a group.", ("consumer_group",)
)
SUBSCRIPTIONS_DIFFER = Metric(
    "aerobee_consumer_group_subscriptions_differ",
    _GAUGE,
    "1: members of the group subscribe differently now.",
    ("consumer_group",),
)
SUBSCRIPTION_CONFLICTS = Metric(
    "aerobee_subscription_conflicts_total",
    _COUNTER,
    "Number of times that members of a group began to subscribe differently.",
    ("consumer_group",),
    former="rocketmq_subscription_conflicts_total",
)
COMMIT_LOG = Metric(
    "aerobee_commit_log_bytes", _GAUGE, "Bytes of the commit log.", former="rocketmq_storage_size"
)
DISK_FREE = Metric(
    "aerobee_disk_free_bytes", _GAUGE, "Bytes of the store's disk that the broker may still use."
)
DISK_SIZE = Metric("aerobee_disk_size_bytes", _GAUGE, "Used and free bytes of the store's disk.")
DISK_FULL = Metric(
    "aerobee_disk_full", _GAUGE, "1: the store refuses producers, because its disk is full."
)
STORE_READ_ONLY = Metric(
    "aerobee_store_read_only",
    _GAUGE,
    "1: the store does not accept writes.",
    former="rocketmq_store_read_only",
)
CORRUPTED_RECORDS = Metric(
    "aerobee_corrupted_records_total",
    _COUNTER,
    "Records that failed their check.",
    former="rocketmq_corrupted_records_total",
)
DAMAGED_RANGES = Metric(
    "aerobee_damaged_log_ranges",
    _GAUGE,
    "Parts of the log that are known to be damaged and are not repaired.",
)
DAMAGED_BYTES = Metric("aerobee_damaged_log_bytes", _GAUGE, "Their bytes.")
REPAIRED_RECORDS = Metric(
    "aerobee_repaired_records_total",
    _COUNTER,
    "Records repaired from other replicas.",
)
SCRUBBED_BYTES = Metric(
    "aerobee_scrubbed_bytes_total",
    _COUNTER,
    "Bytes of the log that scrubs have checked.",
)
SCRUB_COMPLETED = Metric(
    "aerobee_scrub_completed_timestamp_seconds",
    _GAUGE,
    "When the whole log was last checked, since the epoch; missing if it was not.",
)
LITE_TOPICS_EXPIRED = Metric(
    "aerobee_lite_topics_expired_total",
    _COUNTER,
    "Lite topics that their TTL has removed.",
    ("topic",),
)
LITE_UNSETTLED = Metric(
    "aerobee_lite_messages_expired_unsettled_total",
    _COUNTER,
    "Messages that a group had not settled in lite topics that their TTL has removed.",
    ("topic", "consumer_group"),
)
TRANSACTION_CHECKS = Metric(
    "aerobee_transaction_checks_total",
    _COUNTER,
    "Checks of half messages that were sent to producers.",
    ("topic",),
    former="rocketmq_transaction_checks_total",
)
GIVEN_UP_HALF_MESSAGES = Metric(
    "aerobee_given_up_half_messages_total",
    _COUNTER,
    "Half messages given up after their checks.",
    ("topic",),
    former="rocketmq_given_up_half_messages_total",
)
OLDEST_HALF_MESSAGE = Metric(
    "aerobee_oldest_half_message_seconds",
    _GAUGE,
    "Age of the oldest half message with an open transaction; 0 if there is none.",
)
LATENESS = Metric(
    "aerobee_delayed_delivery_lateness_seconds",
    _HISTOGRAM,
    "For how long a delayed message was late.",
    buckets=_LATENESS_S,
    former="rocketmq_delay_message_latency",
)
PARKED_PULLS = Metric(
    "aerobee_parked_pulls", _GAUGE, "Pulls that wait for a message.", former="rocketmq_parked_pulls"
)
PARKED_POPS = Metric(
    "aerobee_parked_pops", _GAUGE, "Pops that wait for a message.", former="rocketmq_parked_pops"
)
LEASED_MESSAGES = Metric(
    "aerobee_pop_leased_messages",
    _GAUGE,
    "Messages on lease.",
    former="rocketmq_pop_leased_messages",
)
WAITING_MESSAGES = Metric(
    "aerobee_pop_waiting_messages",
    _GAUGE,
    "Messages that wait for redelivery or for their turn.",
    former="rocketmq_pop_waiting_messages",
)
BLOCKED_GROUPS = Metric(
    "aerobee_pop_blocked_message_groups",
    _GAUGE,
    "Message groups whose next message waits for the previous one.",
    former="rocketmq_pop_blocked_message_groups",
)
BLOCKED_SECONDS = Metric(
    "aerobee_pop_blocked_message_group_seconds",
    _GAUGE,
    "For how long the message group that waits longest is blocked; 0 if none is.",
)

# ---- replicas ----

_REPLICA = ("replica_id",)
_SLAVE = ("replica_id", "slave")


def _replica(
    name: str,
    kind: Kind,
    text: str,
    labels: tuple[str, ...] = _REPLICA,
    buckets: tuple[float, ...] = (),
) -> Metric:
    return Metric(f"aerobee_replica_{name}", kind, text, labels, buckets=buckets)


REPLICA_ROLE = _replica("role", _GAUGE, "1: the role of this replica.", ("replica_id", "role"))
REPLICA_EPOCH = _replica("epoch", _GAUGE, "The highest epoch that this replica knows.")
REPLICA_IN_SYNC = _replica(
    "in_sync", _GAUGE, "Of a master: replicas in sync, with itself; missing at others."
)
REPLICA_REQUIRED = _replica(
    "required", _GAUGE, "Of a master: replicas that sends require in sync; missing at others."
)
REPLICA_UNCONFIRMED = _replica(
    "unconfirmed_bytes", _GAUGE, "Bytes of the log that may be missing on a replica in sync."
)
REPLICA_FOLLOWING = _replica("following", _GAUGE, "1: the stream to the master is open.")
REPLICA_COPYING = _replica("copying", _GAUGE, "1: it copies its master's log or tables.")
REPLICA_COORDINATOR = _replica(
    "coordinator_reachable", _GAUGE, "1: etcd answered last, or is not needed."
)
REPLICA_LAG = _replica(
    "lag_bytes", _GAUGE, "Of a master: bytes of its log that a slave lacks.", _SLAVE
)
REPLICA_BEHIND = _replica(
    "behind_seconds", _GAUGE, "Of a master: time since a slave was last caught up.", _SLAVE
)
REPLICA_CLOCK_OFFSET = _replica(
    "clock_offset_seconds",
    _GAUGE,
    "Of a master: how far a slave's clock is ahead of its own.",
    _SLAVE,
)
REPLICA_WAIT = _replica(
    "wait_seconds",
    _HISTOGRAM,
    "Of a master: time from a flush until every replica in sync has the flushed bytes.",
    buckets=(0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1, 2, 5),
)
REPLICA_ELECTIONS = _replica(
    "elections_total", _COUNTER, "Number of times that it became master.", ("replica_id", "reason")
)
REPLICA_RECEIVED = _replica(
    "received_bytes_total", _COUNTER, "Bytes that it received from its masters' logs."
)
REPLICA_CUTS = _replica("cuts_total", _COUNTER, "Number of times that it cut its log.")
REPLICA_DIVERGED_BYTES = _replica(
    "diverged_bytes_total", _COUNTER, "Bytes that it cut off its log."
)
REPLICA_DIVERGED_MESSAGES = _replica(
    "diverged_messages_total", _COUNTER, "Messages of clients in what it cut off its log."
)
REPLICA_GIVEN_UP = _replica(
    "given_up_bytes_total",
    _COUNTER,
    "Lower limit of the bytes of other logs that its unclean elections gave up.",
)
