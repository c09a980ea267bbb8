"""Define the options of a broker. Options that RocketMQ has too have RocketMQ's keys.

The module depends on neither files nor the command line.

These defaults differ from RocketMQ's:

- flushDiskType is SYNC_FLUSH, so that acknowledged messages are durable.
- pullBatchMaxMessageCount is 4096, because an answer is copied from the log without decoding.
- recallMessageEnable is on.
- enablePropertyFilter is on, because a subscription without a filter has no cost.
- enabledAppendPropCRC is on, so that damage anywhere in a record is detected.
- bindAddress is the loopback address.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import Field, field_validator

from aerobee_chassis.config import KnownKeys, Milliseconds, Port, TraceOptions
from aerobee_chassis.errors import ConfigError
from aerobee_chassis.rpc.peer_tls import ServerTlsOptions
from aerobee_wire.route import FORMER_MASTER_ID

MAX_NAME_BYTES = 127  # of a broker or a cluster
MAX_PORT = 65_535
# In tlsCertPath and tlsKeyPath, it stands for the name of the broker: a certificate names one.
NAME_IN_PATH = "{brokerName}"
Percent = Annotated[int, Field(ge=1, le=100)]

_KNOWN_KEYS = Path(__file__).with_name("rocketmq_keys.toml")

DELAY_LEVELS = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
MAX_DELAY_LEVELS = 18  # the queues of a group's own delays start after them
_UNITS_MS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_DELAY = re.compile(r"(\d+)([smhd])")


class BrokerOptions(ServerTlsOptions, TraceOptions):
    # ---- identity and addresses ----
    broker_cluster_name: str = Field(default="DefaultCluster", min_length=1)
    broker_name: str = Field(default_factory=socket.gethostname, min_length=1)
    broker_id: int = Field(default=0, ge=0)
    listen_port: Port = 10_911
    # Not in RocketMQ: processes on this machine, each of which is a broker of its own (`shards`).
    shards: int = Field(default=1, ge=1, le=64)
    # The host that clients dial; empty: the bound address.
    broker_ip1: str = Field(default="", alias="brokerIP1")
    namesrv_addr: str = ""
    register_name_server_period: Milliseconds = 30_000  # clamped to 10 … 60 s
    register_broker_timeout_mills: Milliseconds = 24_000
    broker_permission: int = Field(default=6, ge=0, le=7)

    # ---- topics and groups ----
    auto_create_topic_enable: bool = True
    auto_create_subscription_group: bool = True
    default_topic_queue_nums: int = Field(default=8, ge=1, le=65_536)
    # Not in RocketMQ: the most topics (without those of groups) and groups of this broker, and how
    # many of both one user or host may create in a minute by using them.
    max_topics: int = Field(default=100_000, ge=1)
    max_groups: int = Field(default=50_000, ge=1)
    max_auto_creations: int = Field(default=60, ge=1)
    cluster_topic_enable: bool = True
    broker_topic_enable: bool = True
    validate_system_topic_when_update_topic: bool = True
    enable_mixed_message_type: bool = False

    # ---- messages ----
    max_message_size: int = Field(default=4 * 1024 * 1024, ge=1, le=32 * 1024 * 1024)
    message_delay_level: str = DELAY_LEVELS
    timer_max_delay_sec: int = Field(default=259_200, ge=1, le=31_536_000)
    # Not in RocketMQ: messages that wait for their own delivery time, at 56 bytes of memory each.
    timer_max_messages: int = Field(default=2_000_000, ge=1)
    recall_message_enable: bool = True
    pull_batch_max_message_count: int = Field(default=4_096, ge=1)
    long_polling_enable: bool = True
    enable_property_filter: bool = True  # SQL92 subscriptions
    region_id: str = "DefaultRegion"
    trace_on: bool = True
    trace_topic_enable: bool = False  # creates the topic for the traces of clients

    # ---- transactions ----
    reject_transaction_message: bool = False
    transaction_time_out: Milliseconds = 6_000  # before a producer is first asked
    transaction_check_interval: Milliseconds = 30_000
    transaction_check_max: int = Field(default=15, ge=1)
    max_open_transactions: int = Field(default=1_000_000, ge=1)  # not in RocketMQ

    # ---- clients ----
    channel_expired_timeout: Milliseconds = 120_000
    max_polls_per_client: int = Field(default=1_024, ge=1)  # not in RocketMQ: pops that wait
    notify_consumer_ids_changed_enable: bool = True

    # ---- store ----
    store_path_root_dir: Path = Path("~/aerobee/broker/store")
    flush_disk_type: Literal["SYNC_FLUSH", "ASYNC_FLUSH"] = "SYNC_FLUSH"
    sync_flush_timeout: Milliseconds = 5_000
    flush_interval_commit_log: Milliseconds = 500
    flush_commit_log_least_pages: int = Field(default=4, ge=0)
    flush_commit_log_thorough_interval: Milliseconds = 10_000
    flush_consumer_offset_interval: Milliseconds = 5_000
    flush_delay_offset_interval: Milliseconds = 10_000
    mapped_file_size_commit_log: int = Field(default=1024**3, ge=4_096)
    mapped_file_size_consume_queue: int = Field(default=6_000_000, ge=20, multiple_of=20)
    message_index_enable: bool = True
    max_hash_slot_num: int = Field(default=5_000_000, ge=1)
    max_index_num: int = Field(default=20_000_000, ge=2)
    # A CRC over the whole record, 20 bytes: without it, damage outside of the body is not detected.
    # Turn it on only after a clean stop: after a crash, a record without it would count as torn.
    enabled_append_prop_crc: bool = Field(default=True, alias="enabledAppendPropCRC")
    check_crc_on_recover: bool = Field(default=True, alias="checkCRCOnRecover")
    # Not in RocketMQ: the time between two checks of the whole log (0: none), and the maximum bytes
    # per second that a check reads.
    scrub_interval: int = Field(default=24 * 3_600_000, ge=0)  # milliseconds
    scrub_rate: int = Field(default=8 * 1024 * 1024, ge=1)
    clean_resource_interval: Milliseconds = 10_000
    delete_when: str = "04"
    file_reserved_time: int = Field(default=72, ge=1)  # hours
    delete_file_batch_max: int = Field(default=10, ge=1)
    disk_max_used_space_ratio: Percent = 75
    disk_space_clean_forcibly_ratio: Percent = 85
    disk_space_warning_level_ratio: Percent = 90
    # Not in RocketMQ. Above the stop ratio, retries and delayed messages are refused too. Fewer
    # free bytes than diskMinFreeBytes count as above the warning level. At most retainBytes of
    # commit log are kept. 0 disables either of the last two.
    disk_space_stop_ratio: Percent = 95
    disk_min_free_bytes: int = Field(default=0, ge=0)
    retain_bytes: int = Field(default=0, ge=0)
    clean_file_forcibly_enable: bool = True

    # ---- replication ----
    broker_role: Literal["ASYNC_MASTER", "SYNC_MASTER", "SLAVE"] = "ASYNC_MASTER"
    ha_master_address: str = ""
    total_replicas: int = Field(default=1, ge=1)
    in_sync_replicas: int = Field(default=0, ge=0)  # 0: 2 with SYNC_MASTER, else 1
    enable_auto_in_sync_replicas: bool = False
    min_in_sync_replicas: int = Field(default=1, ge=1)
    slave_timeout: Milliseconds = 3_000
    ha_max_time_slave_not_catchup: Milliseconds = 2_000
    ha_max_gap_not_in_sync: int = Field(default=256 * 1024 * 1024, ge=0)
    ha_send_heartbeat_interval: Milliseconds = 500
    ha_housekeeping_interval: Milliseconds = 5_000
    ha_transfer_batch_size: int = Field(default=1024 * 1024, ge=1)
    ha_flow_control_enable: bool = False
    max_ha_transfer_byte_in_second: int = Field(default=100 * 1024 * 1024, ge=1)
    async_learner: bool = False
    sync_from_last_file: bool = False
    slave_read_enable: bool = False
    # Percent of the memory: a reader that is further behind is redirected to a slave.
    access_message_in_memory_max_ratio: int = Field(default=40, ge=0, le=100)
    # Not in RocketMQ: etcd elects the master.
    etcd_endpoints: str = ""
    etcd_key_prefix: str = Field(default="/aerobee", pattern=r"^/[^/\s]+(/[^/\s]+)*$")
    etcd_lease_ttl: int = Field(default=4, ge=2)  # seconds
    etcd_ca_path: str = ""  # empty: plaintext connections to etcd
    etcd_cert_path: str = ""
    etcd_key_path: str = ""
    ha_fast_failover: bool = True
    # After all members of the in-sync set were gone, the first to return waits for the others.
    election_wait_for_set: Milliseconds = 10_000
    broker_election_priority: int = Field(default=2**31 - 1, ge=0)
    enable_elect_unclean_master: bool = False

    # ---- monitoring ----
    metrics_prom_exporter_port: Port = 5_557

    known_keys: ClassVar[KnownKeys] = KnownKeys.read(_KNOWN_KEYS)
    runtime_keys: ClassVar[frozenset[str]] = frozenset(
        [
            # retention and disk
            *("fileReservedTime", "deleteWhen", "retainBytes", "deleteFileBatchMax"),
            *("cleanFileForciblyEnable", "diskMaxUsedSpaceRatio", "diskSpaceCleanForciblyRatio"),
            *("diskSpaceWarningLevelRatio", "diskSpaceStopRatio", "diskMinFreeBytes"),
            # creation by first use
            *("autoCreateTopicEnable", "autoCreateSubscriptionGroup", "defaultTopicQueueNums"),
            # messages and transactions
            *("maxMessageSize", "pullBatchMaxMessageCount", "timerMaxDelaySec"),
            *("timerMaxMessages", "rejectTransactionMessage", "transactionTimeOut"),
            *("transactionCheckInterval", "transactionCheckMax"),
            "logLevel",
        ]
    )
    environment_aliases: ClassVar[Mapping[str, str]] = {"NAMESRV_ADDR": "namesrvAddr"}
    foreign_variables: ClassVar[frozenset[str]] = frozenset({"AEROBEE_AUTO_CREATE_TOPICS"})

    @property
    def is_replicated(self) -> bool:
        """Return whether this broker is a replica: its log is copied, or is a copy."""
        return self.broker_role != "ASYNC_MASTER" or self.total_replicas > 1 or self.is_elected

    @property
    def is_elected(self) -> bool:
        """Return whether etcd elects the master."""
        return bool(self.etcd_addresses)

    @property
    def etcd_addresses(self) -> tuple[str, ...]:
        return tuple(filter(None, map(str.strip, re.split("[;,]", self.etcd_endpoints))))

    @property
    def is_synchronous(self) -> bool:
        """Return whether this broker, as master, acknowledges a message only when replicas have it.

        A promoted SLAVE requires as many copies as its own option inSyncReplicas.
        """
        return self.broker_role == "SYNC_MASTER" or (
            self.broker_role == "SLAVE" and self.in_sync_replicas > 1
        )

    @property
    def is_learner(self) -> bool:
        """Return whether this replica never joins the in-sync set.

        A group without etcd needs to know that there are totalReplicas copies, to decide whether a
        promotion loses messages. So additional replicas only read.
        """
        beyond = 1 < self.total_replicas <= self.broker_id and not self.is_elected
        return self.async_learner or beyond

    @property
    def required_replicas(self) -> int:
        return self.in_sync_replicas or (2 if self.broker_role == "SYNC_MASTER" else 1)

    @property
    def least_copies(self) -> int:
        """Return on how many replicas a message is at least that this broker acknowledges."""
        if not self.is_synchronous:
            return 1
        automatic = self.enable_auto_in_sync_replicas
        return self.min_in_sync_replicas if automatic else self.required_replicas

    @property
    def delay_levels_ms(self) -> tuple[int, ...]:
        """Return the delays of the levels 1, 2, … in milliseconds."""
        return parse_delay_levels(self.message_delay_level)

    @property
    def namesrvs(self) -> tuple[str, ...]:
        """Return the "host:port" of every name server."""
        return tuple(part.strip() for part in self.namesrv_addr.split(";") if part.strip())

    @field_validator("broker_role", mode="before")
    @classmethod
    def _role(cls, value: object) -> object:
        return value.strip().upper() or "ASYNC_MASTER" if isinstance(value, str) else value

    @field_validator("total_replicas", "min_in_sync_replicas", mode="before")
    @classmethod
    def _unset_is_one(cls, value: object) -> object:
        return 1 if value == "" else value

    @field_validator("in_sync_replicas", mode="before")
    @classmethod
    def _unset_is_zero(cls, value: object) -> object:
        return 0 if value == "" else value

    @field_validator("ha_master_address")
    @classmethod
    def _master_address(cls, value: str) -> str:
        _check_address(value.strip())
        return value.strip()

    @field_validator("broker_cluster_name", "broker_name")
    @classmethod
    def _names(cls, value: str) -> str:
        """Check the name of the broker or cluster, which is part of receipt handles and topics."""
        size = len(value.encode("utf-8", "surrogatepass"))
        if size > MAX_NAME_BYTES or "/" in value or not value.isprintable():
            raise ValueError(
                f"write at most {MAX_NAME_BYTES} bytes without / or control characters"
            )
        return value

    @field_validator("message_delay_level")
    @classmethod
    def _levels(cls, value: str) -> str:
        parse_delay_levels(value)
        return value

    @field_validator("delete_when")
    @classmethod
    def _hours(cls, value: str) -> str:
        if not all(re.fullmatch(r"\d{1,2}", hour) and int(hour) < 24 for hour in value.split(";")):
            raise ValueError('write hours of the day, separated by ";", for example 04;16')
        return value

    @field_validator("etcd_endpoints")
    @classmethod
    def _endpoints(cls, value: str) -> str:
        for part in re.split("[;,]", value):
            _check_address(part.strip())
        return value

    @field_validator("namesrv_addr")
    @classmethod
    def _addresses(cls, value: str) -> str:
        for part in filter(None, map(str.strip, value.split(";"))):
            _check_address(part)
        return value

    @property
    def delete_hours(self) -> tuple[int, ...]:
        return tuple(int(hour) for hour in self.delete_when.split(";"))

    def conflicts(self) -> Iterator[ConfigError]:
        yield from super().conflicts()
        yield from self._conflicts_of_watermarks()
        if self.is_replicated:
            yield from self._conflicts_of_a_group()
        else:
            yield from self._keys_of_a_group()
        yield from self._conflicts_of_etcd()
        if self.shards > 1:
            yield from self._conflicts_of_shards()

    def _conflicts_of_shards(self) -> Iterator[ConfigError]:
        if self.is_replicated:
            yield ConfigError(
                f"shards = {self.shards} with brokerRole = {self.broker_role}, totalReplicas = "
                f"{self.total_replicas}, etcdEndpoints = {self.etcd_endpoints!r}: shards have no "
                "replicas; run a process for each replica, with a brokerName for each group",
                "shards",
            )
        paths = {"tlsCertPath": self.tls_cert_path, "tlsKeyPath": self.tls_key_path}
        for key, path in paths.items():
            if path and NAME_IN_PATH not in path:
                yield ConfigError(
                    f"{key} = {path} with shards = {self.shards}: a certificate names one broker; "
                    f"write {NAME_IN_PATH} into the path, and make a certificate for each shard",
                    key,
                )
        beyond = self.shards - 1
        exporter_port = self.metrics_prom_exporter_port
        ports = {"listenPort": self.listen_port}
        if self.metrics_exporter_type == "PROM" and exporter_port:
            ports["metricsPromExporterPort"] = exporter_port
            if self.listen_port and abs(exporter_port - self.listen_port) <= beyond:
                yield ConfigError(
                    f"listenPort = {self.listen_port} and metricsPromExporterPort = "
                    f"{exporter_port} with shards = {self.shards}: each shard needs the next port "
                    f"of both; choose them at least {self.shards} apart",
                    "metricsPromExporterPort",
                )
        for key, port in ports.items():
            if port + beyond > MAX_PORT:
                yield ConfigError(
                    f"{key} = {port} with shards = {self.shards}: the last shard would need port "
                    f"{port + beyond}; use at most {MAX_PORT - beyond}",
                    key,
                )
        longest = MAX_NAME_BYTES - len(f"-{beyond}")
        if len(self.broker_name.encode()) > longest:
            yield ConfigError(
                f"brokerName has {len(self.broker_name.encode())} bytes with shards = "
                f"{self.shards}: use at most {longest}, because each shard adds its number",
                "brokerName",
            )

    def _conflicts_of_watermarks(self) -> Iterator[ConfigError]:
        """Check that the watermarks of disk usage ascend.

        diskMaxUsedSpaceRatio may be above them, as in the configuration files of many RocketMQ
        clusters. In this case diskSpaceCleanForciblyRatio is the first limit that takes effect.
        """
        marks = {
            "diskSpaceCleanForciblyRatio": self.disk_space_clean_forcibly_ratio,
            "diskSpaceWarningLevelRatio": self.disk_space_warning_level_ratio,
            "diskSpaceStopRatio": self.disk_space_stop_ratio,
        }
        if list(marks.values()) != sorted(marks.values()):
            spellings = self.keys()
            given = [key for key in marks if spellings[key] in self.model_fields_set]
            described = ", ".join(
                f"{key} = {value}{'' if key in given else ' (default)'}"
                for key, value in marks.items()
            )
            yield ConfigError(
                f"the marks of disk usage descend: {described}; set the others, so that none is "
                "lower than the one before it",
                given[-1],
            )

    def _keys_of_a_group(self) -> Iterator[ConfigError]:
        """Check a broker without replicas for options of replicas."""
        for key, asks in (
            ("haMasterAddress", bool(self.ha_master_address)),
            ("inSyncReplicas", self.in_sync_replicas > 1),
            ("minInSyncReplicas", self.min_in_sync_replicas != 1),
        ):
            if asks:
                yield ConfigError(
                    f"option {key}: this broker has no replicas; set brokerRole = SYNC_MASTER "
                    "or SLAVE, or totalReplicas (docs/replication.md)",
                    key,
                )

    def _conflicts_of_etcd(self) -> Iterator[ConfigError]:
        given = [("etcdCertPath", self.etcd_cert_path), ("etcdKeyPath", self.etcd_key_path)]
        if bool(self.etcd_cert_path) != bool(self.etcd_key_path):
            missing = next(key for key, path in given if not path)
            yield ConfigError(
                "etcdCertPath and etcdKeyPath go together: the certificate that this broker shows "
                "etcd, and its key",
                missing,
            )
        if self.etcd_cert_path and not self.etcd_ca_path:
            yield ConfigError(
                "etcdCertPath without etcdCaPath: name the file with the authority that signed "
                "etcd's own certificate, too",
                "etcdCaPath",
            )
        if self.etcd_ca_path and not self.is_elected:
            yield ConfigError("etcdCaPath without etcdEndpoints: set these too", "etcdEndpoints")
        if self.enable_elect_unclean_master and not self.is_elected:
            yield ConfigError(
                "enableElectUncleanMaster without etcdEndpoints: there is no election; remove it, "
                "and give messages up by hand (aerobee broker promote --unclean)",
                "enableElectUncleanMaster",
            )

    def _conflicts_of_a_group(self) -> Iterator[ConfigError]:
        """Check the options of a replica group."""
        if self.is_elected:
            if self.broker_role == "SLAVE" or not self.broker_id:
                yield ConfigError(
                    "with etcdEndpoints, do not set brokerRole=SLAVE, and use brokerId >= 1 (0 is "
                    "reserved for the elected master): set the same brokerRole on all replicas, "
                    "and another brokerId on each",
                    "brokerRole" if self.broker_role == "SLAVE" else "brokerId",
                )
        elif self.broker_id >= FORMER_MASTER_ID:
            yield ConfigError(
                f"brokerId is at most {FORMER_MASTER_ID - 1} in a group of brokers", "brokerId"
            )
        elif (self.broker_role == "SLAVE") != (self.broker_id > 0):
            yield ConfigError(
                "a master has brokerId 0, and each SLAVE of its brokerName a brokerId of its own "
                "from 1 on: set brokerRole or brokerId",
                "brokerId",
            )
        if not self.min_in_sync_replicas <= self.required_replicas:
            yield ConfigError(
                "minInSyncReplicas must not be higher than inSyncReplicas", "minInSyncReplicas"
            )
        if 1 < self.total_replicas < self.required_replicas:
            yield ConfigError(
                f"inSyncReplicas = {self.required_replicas} with totalReplicas = "
                f"{self.total_replicas}: no send would ever have that many copies",
                "inSyncReplicas",
            )
        for key, duration_ms in (
            ("haHousekeepingInterval", self.ha_housekeeping_interval),
            ("haMaxTimeSlaveNotCatchup", self.ha_max_time_slave_not_catchup),
        ):
            if duration_ms <= self.ha_send_heartbeat_interval:
                yield ConfigError(
                    f"{key} must be longer than haSendHeartbeatInterval, within which a replica "
                    "that has nothing to do says nothing",
                    key,
                )
        if self.async_learner and not self.is_elected and self.broker_role != "SLAVE":
            yield ConfigError(
                "asyncLearner is of a replica that only reads: set brokerRole = SLAVE on it",
                "asyncLearner",
            )
        if self.flush_disk_type == "ASYNC_FLUSH":
            yield ConfigError(
                f"flushDiskType = ASYNC_FLUSH with brokerRole = {self.broker_role}: a broker with "
                "replicas flushes before it acknowledges, or its log might be shorter after a "
                "power cut than what it acknowledged; set flushDiskType = SYNC_FLUSH, or, for a "
                "broker without replicas, brokerRole = ASYNC_MASTER without totalReplicas and "
                "etcdEndpoints",
                "flushDiskType",
            )


def _check_address(text: str) -> None:
    """Check that a text is "host:port" or empty. Raises ValueError."""
    host, _, port = text.rpartition(":")
    if text and (not host or not port.isdigit() or int(port) > 65_535):
        raise ValueError(f'invalid host:port {text!r}; separate several name servers with ";"')


@cache
def parse_delay_levels(text: str) -> tuple[int, ...]:
    """Return the delay of each level, in ms, of a text like "1s 5s 1m 2h". Raises ValueError."""
    matches = [_DELAY.fullmatch(word) for word in text.split()]
    if not matches or len(matches) > MAX_DELAY_LEVELS or not all(matches):
        raise ValueError(
            f"write 1 to {MAX_DELAY_LEVELS} delays with a unit s, m, h or d, for example 1s 5s 1m"
        )
    return tuple(int(match[1]) * _UNITS_MS[match[2]] for match in matches if match)
