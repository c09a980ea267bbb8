"""Define the options of a proxy. An option has RocketMQ's key (rmq-proxy.json) if one exists.

This module does not read files or the command line. These defaults differ from RocketMQ's:

    useEndpointPortFromRequest   true, so that clients behind a port mapping keep the mapped port
    bindAddress                  the loopback address
    tlsCertWatchIntervalMs       10 s

If a certificate is given, the proxy uses it regardless of tlsTestModeEnable. The option
tlsServerMode corresponds to RocketMQ's system property tls.server.mode.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import ClassVar, Literal, TypeAlias

from pydantic import Field, field_validator

from aerobee_chassis.config import MIB, KnownKeys, Milliseconds, Port, TraceOptions
from aerobee_chassis.errors import ConfigError
from aerobee_chassis.rpc.peer_tls import PortOptions

_KNOWN_KEYS = Path(__file__).with_name("rocketmq_keys.toml")


class ProxyOptions(PortOptions, TraceOptions):
    # ---- addresses ----
    grpc_server_port: Port = 8_081
    namesrv_addr: str = ""
    # The endpoints that clients must dial, as "host:port;host:port". If empty, routes contain the
    # endpoints that the client dialled.
    advertised_endpoints: str = ""
    use_endpoint_port_from_request: bool = True

    # The administration port: apache.rocketmq.v2.Admin, and the options at run time.
    enable_proxy_admin_grpc_server: bool = False
    proxy_admin_grpc_server_port: Port = 8_088
    # Not in RocketMQ: the file with changes of options at run time. If empty, they last until the
    # process ends.
    runtime_config_path: str = ""

    # 0: two messages of the maximum size, and 1 MiB.
    max_request_bytes: int = Field(default=0, ge=0, le=64 * MIB)
    workers: int = Field(default=1, ge=1, le=64)  # processes that share the port

    # ---- access ----
    authentication_enabled: bool = False
    authentication_users_file: str = ""  # if empty, users and policies come from name servers
    authorization_enabled: bool = False
    # Not in RocketMQ: whether the signatures of SDKs on other machines count over TLS alone. They
    # prove nothing about the request, so who reads one could make any call with it.
    authentication_require_tls: bool = True
    # Not in RocketMQ: check callers, but log calls instead of rejecting them.
    access_observe_only: bool = False

    # ---- TLS ---- (TLS and plaintext share one port, unless tlsServerMode turns one of them off)
    tls_server_mode: Literal["disabled", "permissive", "enforcing"] = "permissive"
    # Without a certificate, each process creates a self-signed one.
    tls_test_mode_enable: bool = True
    tls_cert_watch_interval_ms: Milliseconds = 10_000
    # Not in RocketMQ, which accepts a header from each address: the networks of load balancers
    # whose connections begin with a header of the PROXY protocol, such as "10.0.0.0/24,fd00::/64".
    proxy_protocol_trusted: str = ""

    # ---- messages ---- (a size of 0 or less means no limit)
    max_message_size: int = 4 * 1024 * 1024
    enable_message_body_empty_check: bool = True
    max_user_property_size: int = 16 * 1024
    user_property_max_num: int = 128
    max_message_group_size: int = 64
    max_lite_topic_size: int = Field(default=64, ge=1)
    max_delay_time_mills: Milliseconds = 86_400_000
    max_transaction_recovery_second: int = Field(default=3_600, ge=1)
    enable_topic_message_type_check: bool = True
    # Whether the first route query creates a topic, if brokers allow it (autoCreateTopicEnable).
    auto_create_topics: bool = True

    # ---- limits ----
    max_clients_per_user: int = Field(default=10_000, ge=1)
    max_polls_per_client: int = Field(default=1_024, ge=1)  # receives at once
    # The topics that one user, or one host without users, may create in a minute by using them.
    max_auto_creations: int = Field(default=60, ge=1)

    # ---- leases ----
    default_invisible_time_mills: Milliseconds = 60_000
    min_invisible_time_mills_for_recv: Milliseconds = 10_000
    max_invisible_time_mills: Milliseconds = 43_200_000

    # ---- settings of clients ----
    grpc_client_producer_max_attempts: int = Field(default=3, ge=1)
    grpc_client_producer_backoff_initial_millis: Milliseconds = 10
    grpc_client_producer_backoff_max_millis: Milliseconds = 1_000
    grpc_client_producer_backoff_multiplier: int = Field(default=2, ge=1)
    grpc_client_consumer_max_long_polling_timeout_millis: Milliseconds = 20_000
    grpc_client_consumer_long_polling_batch_size: int = Field(default=32, ge=1, le=32)

    # ---- metrics and logs ----
    metrics_prom_exporter_port: Port = 5_558

    known_keys: ClassVar[KnownKeys] = KnownKeys.read(_KNOWN_KEYS)
    # Not maxMessageSize: the port limits requests by it, from its start on.
    runtime_keys: ClassVar[frozenset[str]] = frozenset(
        [
            # messages
            *("enableMessageBodyEmptyCheck", "maxUserPropertySize", "userPropertyMaxNum"),
            *("maxMessageGroupSize", "maxLiteTopicSize", "maxDelayTimeMills"),
            *("maxTransactionRecoverySecond", "enableTopicMessageTypeCheck"),
            # limits and creation by first use
            *("maxClientsPerUser", "maxPollsPerClient", "autoCreateTopics"),
            # leases
            *("defaultInvisibleTimeMills", "minInvisibleTimeMillsForRecv"),
            "maxInvisibleTimeMills",
            # settings of clients, which each client gets when it sends its settings next
            *("grpcClientProducerMaxAttempts", "grpcClientProducerBackoffInitialMillis"),
            *("grpcClientProducerBackoffMaxMillis", "grpcClientProducerBackoffMultiplier"),
            "grpcClientConsumerMaxLongPollingTimeoutMillis",
            "grpcClientConsumerLongPollingBatchSize",
            "logLevel",
        ]
    )
    environment_aliases: ClassVar[Mapping[str, str]] = {"NAMESRV_ADDR": "namesrvAddr"}
    closing_options: ClassVar[str] = "tlsCertPath, tlsKeyPath and authenticationEnabled=true"

    @property
    def largest_request(self) -> int:
        if self.max_message_size <= 0:
            return self.max_request_bytes or 64 * MIB
        return self.max_request_bytes or min(2 * self.max_message_size + MIB, 64 * MIB)

    @property
    def is_closed(self) -> bool:
        return (
            self.authentication_enabled
            and not self.access_observe_only
            and self.tls_server_mode != "disabled"
        )

    @property
    def namesrvs(self) -> tuple[str, ...]:
        """Return the address ("host:port") of every name server."""
        return tuple(part.strip() for part in self.namesrv_addr.split(";") if part.strip())

    @property
    def trusted_networks(self) -> tuple[str, ...]:
        """Return the network (CIDR) of each load balancer that sends the PROXY protocol."""
        parts = self.proxy_protocol_trusted.split(",")
        return tuple(part.strip() for part in parts if part.strip())

    def conflicts(self) -> Iterator[ConfigError]:
        if self.workers > 1 and self.enable_proxy_admin_grpc_server:
            problem = "workers cannot share the administration port: workers=1 allows it"
            yield ConfigError(problem, "enableProxyAdminGrpcServer")
        if self.authorization_enabled and not self.authentication_enabled:
            problem = "authorizationEnabled needs authenticationEnabled=true"
            yield ConfigError(problem, "authenticationEnabled")
        yield from super().conflicts()
        if self.tls_server_mode != "disabled" and not (
            self.tls_cert_path or self.tls_test_mode_enable
        ):
            yield ConfigError(
                "tlsTestModeEnable=false makes no certificate: give tlsCertPath and tlsKeyPath, or "
                "tlsServerMode=disabled",
                "tlsTestModeEnable",
            )

    @field_validator("advertised_endpoints")
    @classmethod
    def _one_name_or_addresses(cls, value: str) -> str:
        hosts = [part.rpartition(":")[0].strip() for part in value.split(";") if part.strip()]
        if len(hosts) > 1 and not all(re.fullmatch(r"[\d.]+|\[?[\da-fA-F:]+\]?", h) for h in hosts):
            # The C++ SDK ends its process if it gets a host name and a second address.
            raise ValueError("write one host name, or several IP addresses")
        return value

    @field_validator("proxy_protocol_trusted")
    @classmethod
    def _networks(cls, value: str) -> str:
        for part in filter(None, map(str.strip, value.split(","))):
            try:
                ipaddress.ip_network(part)
            except ValueError as error:
                raise ValueError(f"{error}; write it like 10.0.0.0/24,fd00::/64") from None
        return value

    @field_validator("namesrv_addr", "advertised_endpoints")
    @classmethod
    def _addresses(cls, value: str) -> str:
        parts = [part for part in map(str.strip, value.split(";")) if part]
        for part in parts:
            host, _, port = part.rpartition(":")
            if not host or not port.isdigit() or not 0 < int(port) <= 65_535:
                raise ValueError(f'invalid host:port {part!r}; separate several with ";"')
        return ";".join(parts)


# Returns the options as they are now, because some may change at run time.
CurrentOptions: TypeAlias = Callable[[], ProxyOptions]
