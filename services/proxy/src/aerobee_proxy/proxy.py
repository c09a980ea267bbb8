"""Create the objects of a proxy, and pass each RPC handler the objects that it uses.

This module does not start any background work.
"""

from __future__ import annotations

import secrets
import socket
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import structlog
from aerobee.namesrv.v1.namesrv_pb2 import RegisterProxyRequest
from aerobee_foreign.apache.rocketmq.v2 import service_pb2 as pb

from aerobee_chassis import logs
from aerobee_chassis.background import Background
from aerobee_chassis.clock import Clock
from aerobee_chassis.per_minute import PerMinute
from aerobee_chassis.rpc.access import RejectionLog
from aerobee_chassis.rpc.in_flight import bounds_of
from aerobee_chassis.runtime_config import LocalFile, RuntimeConfig
from aerobee_cluster.access.quota_buckets import QuotaBuckets
from aerobee_cluster.transport import Transport
from aerobee_proxy.access.table_users import TableUsers
from aerobee_proxy.access.users import Users
from aerobee_proxy.cluster.administration import Administration
from aerobee_proxy.cluster.batches import BrokerBatches
from aerobee_proxy.cluster.broker_calls import BrokerCalls
from aerobee_proxy.cluster.broker_watch import broker_watch
from aerobee_proxy.cluster.group_configs import GroupConfigCache
from aerobee_proxy.cluster.leasing.acknowledge import Acknowledgements
from aerobee_proxy.cluster.leasing.lease_renewal import LeaseRenewal
from aerobee_proxy.cluster.leasing.lite_subscriptions import LiteSubscriptions
from aerobee_proxy.cluster.leasing.receive import Receiver
from aerobee_proxy.cluster.registration import Registration
from aerobee_proxy.cluster.route_cache import RouteCache
from aerobee_proxy.cluster.send import MessageSender
from aerobee_proxy.cluster.topic_creation import TopicCreation
from aerobee_proxy.config import ProxyOptions
from aerobee_proxy.counts import ProxyCounts
from aerobee_proxy.v2 import authorization
from aerobee_proxy.v2.admin.calls import AdminCalls
from aerobee_proxy.v2.admin.clients import ClientRpcs
from aerobee_proxy.v2.admin.groups import GroupRpcs
from aerobee_proxy.v2.admin.messages import MessageRpcs
from aerobee_proxy.v2.admin.process import ProcessRpcs, TrafficRates
from aerobee_proxy.v2.admin.service import handlers
from aerobee_proxy.v2.admin.topics import TopicRpcs
from aerobee_proxy.v2.authentication import Authentication
from aerobee_proxy.v2.client_commands import ClientCommands
from aerobee_proxy.v2.heartbeats import ClientHeartbeats
from aerobee_proxy.v2.lite_clients import LiteDepartures, is_lite, repeat_lite_topics
from aerobee_proxy.v2.routes import endpoints_for
from aerobee_proxy.v2.rpc.clients import (
    heartbeat,
    notify_client_termination,
    sync_lite_subscription,
)
from aerobee_proxy.v2.rpc.leases import (
    ack_message,
    change_invisible_duration,
    forward_to_dead_letter_queue,
)
from aerobee_proxy.v2.rpc.pipeline import Pipeline
from aerobee_proxy.v2.rpc.pull import get_offset, pull_message, query_offset, update_offset
from aerobee_proxy.v2.rpc.receive import delivery_timestamp, receive_message
from aerobee_proxy.v2.rpc.routes import query_assignment, query_route
from aerobee_proxy.v2.rpc.send import end_transaction, recall_message, send_message
from aerobee_proxy.v2.rpc.telemetry import Telemetry
from aerobee_proxy.v2.sessions import Session, Sessions
from aerobee_proxy.v2.transaction_checks import TransactionChecks
from aerobee_wire.version import VERSION


class Proxy:
    """The objects that make up one proxy, created but not started.

    `listen_port` returns the port on which clients reach this proxy, and `admin_address` the
    "host:port" of its administration port, "" if it has none. Call them only after the ports are
    bound. The constructor raises ConfigError if the file of users cannot be used.
    """

    def __init__(
        self,
        options: ProxyOptions,
        transport: Transport,
        clock: Clock,
        *,
        listen_port: Callable[[], int],
        admin_address: Callable[[], str] = str,
        namesrvs: Sequence[str] | None = None,
    ) -> None:
        namesrvs = options.namesrvs if namesrvs is None else namesrvs
        path = options.runtime_config_path
        self.config = RuntimeConfig(
            options,
            LocalFile(Path(path).expanduser()) if path else None,
            remedy="restore the file, or set runtimeConfigPath to another one",
        )
        self._admin_address = admin_address
        self.clock = clock
        self._listen_port = listen_port
        self._started_ms = clock.real.now_ms()
        self._process_id = secrets.token_hex(8)
        self.in_flight = bounds_of(options)
        self.counts = ProxyCounts()
        self.sessions = sessions = Sessions()
        self.background = Background()
        self.authentication: Authentication | None = None  # None: any client may call
        self.users: Users | TableUsers | None = None
        self.quotas: QuotaBuckets | None = None  # None: this proxy has no access table
        self.audit = options.audit(clock)
        if options.authentication_enabled:
            if options.authentication_users_file:
                self.users = Users(Path(options.authentication_users_file))
            else:
                self.users = TableUsers(transport, namesrvs, clock.real.now_ms)
            if isinstance(self.users, TableUsers):
                self.quotas = QuotaBuckets(self.users.table, lambda: clock.monotonic_ms() / 1_000)
            self.authentication = Authentication(
                self.users, self.counts, clock, requires_tls=options.authentication_require_tls
            )

        self.route_cache = RouteCache(transport, namesrvs, clock)
        self.calls = calls = BrokerCalls(transport, self.route_cache, self._introduce_clients)
        self.batches = BrokerBatches(self.calls, self.route_cache)
        self.group_configs = GroupConfigCache(self.calls, self.route_cache, clock)
        self.heartbeats = ClientHeartbeats(self.calls, self.route_cache, clock, self._name)
        self.registration = Registration(transport, namesrvs, self._process)
        self.broker_watch = broker_watch(transport, namesrvs, self.route_cache, calls.availability)
        self.lease_renewal = LeaseRenewal(
            self.batches,
            clock,
            self.counts,
            is_alive=self._is_alive,
            live_members=self.heartbeats.live_members,
        )
        self.topic_creation = TopicCreation(
            self.calls,
            self.route_cache,
            enabled=lambda: self.options.auto_create_topics,
            creations=PerMinute(clock.real, options.max_auto_creations),
        )
        self.sender = MessageSender(
            self.topic_creation, self.route_cache, self.calls, self.batches, self.counts
        )
        self.receiver = Receiver(
            self.calls,
            self.batches,
            self.route_cache,
            self.lease_renewal,
            background=self.background,
            counts=self.counts,
            in_flight=self.in_flight,
        )
        self.acknowledgements = Acknowledgements(
            calls, self.batches, self.lease_renewal, self.counts
        )
        self.transaction_checks = self._make_transaction_checks(transport)
        self._pipeline = Pipeline(
            sessions,
            clock,
            self.counts,
            authentication=self.authentication,
            checks_rights=options.authorization_enabled,
            max_clients_per_user=lambda: self.options.max_clients_per_user,
            quotas=self.quotas,
            audit=self.audit,
            observed=RejectionLog() if options.access_observe_only else None,
        )
        self.lite_subscriptions = LiteSubscriptions(calls, self.route_cache)
        self.departures = LiteDepartures(self.lite_subscriptions, self.background)
        self.client_commands = ClientCommands()
        self.telemetry = Telemetry(
            self._pipeline,
            sessions,
            self.group_configs,
            self._options,
            counts=self.counts,
            clock=clock,
            departures=self.departures,
            announce=self.heartbeats.announce,
            answered=self.client_commands.answered,
        )
        self.rates = TrafficRates(self.counts, clock)
        self.rpcs = self._rpcs()
        self.admin_rpcs = self._admin_rpcs()

    @property
    def options(self) -> ProxyOptions:
        """Return the options as they are now. Some may change at run time."""
        return self.config.now

    def _options(self) -> ProxyOptions:
        return self.config.now

    def _name(self) -> str:
        """Return the name of this proxy. Call it only after the port is bound."""
        return f"{socket.gethostname()}:{self._listen_port()}"

    def _process(self) -> RegisterProxyRequest:
        return RegisterProxyRequest(
            name=self._name(),
            process_id=self._process_id,
            version=VERSION,
            start_timestamp_ms=self._started_ms,
            admin_address=self._admin_address(),
        )

    def _make_transaction_checks(self, transport: Transport) -> TransactionChecks:
        return TransactionChecks(
            transport,
            self.route_cache,
            self.calls,
            sessions=self.sessions,
            counts=self.counts,
            clock=self.clock,
            max_body_size=self.options.max_message_size,
            may_publish=self._may_publish,
        )

    def _introduce_clients(self, broker_name: str) -> None:
        """Register all clients at a broker that may not know them.

        Called when the broker is available again after an outage, or has another master.
        """
        requests = [each.heartbeat for each in self.sessions if each.heartbeat is not None]
        self.background.run(self.heartbeats.repeat(broker_name, requests))
        # A lite client without a stream uses another proxy now, or has ended.
        lite = [each for each in self.sessions if each.streams and is_lite(each)]
        self.background.run(repeat_lite_topics(self.lite_subscriptions, broker_name, lite))

    def expire_clients(self) -> None:
        """Remove clients without a stream that have not made a call for EXPIRY_MS."""
        for session in self.sessions.expire(self.clock.real.monotonic_ms()):
            self.departures.left(session)
            structlog.get_logger().info("client_expired", client_id=session.client_id)

    def _is_alive(self, client_id: str, user: str) -> bool:
        return self.sessions.is_alive(client_id, self.clock.real.monotonic_ms(), user)

    async def refresh_users(self) -> None:
        """Read the file of users again. End calls that are not allowed any more."""
        if isinstance(self.users, Users) and self.users.refresh():
            self._pipeline.held.recheck()

    async def recheck_calls(self) -> None:
        """End calls that are not allowed any more when the access table changes."""
        if isinstance(self.users, TableUsers):
            async for names in self.users.changes():
                logs.hide_users(names, self.users.get)
                self._pipeline.held.recheck(names)

    def end_long_calls(self) -> None:
        """End streams and long polls without an error for the client."""
        self.telemetry.close()
        self.receiver.end_polls()

    async def close(self) -> None:
        self.receiver.close()
        await self.background.close()
        self.calls.close()
        await self.batches.close()

    def _may_publish(self, session: Session, topic: str) -> bool:
        """Return whether the user of a session may publish to a topic now.

        The rights are checked here again, because they may have changed since the client's stream
        began.
        """
        if self.authentication is None or self.options.access_observe_only:
            return True
        user = self.authentication.users.get(session.user)
        if user is None or not user.enabled:
            return False
        return not self.options.authorization_enabled or authorization.may_publish(
            user, topic, session.source
        )

    def _rpcs(self) -> SimpleNamespace:
        """Return the handlers of the RPCs of MessagingService. Their names are in snake_case."""
        options, clock, calls = self._options, self.clock, self.calls
        endpoints = partial(endpoints_for, self.options, self._listen_port)
        acks = self.acknowledgements
        unary, streaming = self._pipeline.unary, self._pipeline.streaming
        named = partial(unary, failure_named=True)
        route_cache, groups, heartbeats = self.route_cache, self.group_configs, self.heartbeats
        return SimpleNamespace(
            telemetry=self.telemetry.telemetry,
            query_route=unary(pb.QueryRouteResponse, query_route, self.topic_creation, endpoints),
            query_assignment=unary(
                pb.QueryAssignmentResponse, query_assignment, route_cache, groups, endpoints
            ),
            heartbeat=unary(pb.HeartbeatResponse, heartbeat, heartbeats, self.background),
            notify_client_termination=unary(
                pb.NotifyClientTerminationResponse,
                notify_client_termination,
                self.sessions,
                heartbeats,
                self.departures,
            ),
            sync_lite_subscription=unary(
                pb.SyncLiteSubscriptionResponse,
                sync_lite_subscription,
                self.lite_subscriptions,
                options,
            ),
            send_message=named(pb.SendMessageResponse, send_message, self.sender, options, clock),
            recall_message=unary(
                pb.RecallMessageResponse, recall_message, calls, route_cache, options
            ),
            end_transaction=unary(
                pb.EndTransactionResponse, end_transaction, self.batches, self.counts
            ),
            receive_message=streaming(
                pb.ReceiveMessageResponse,
                receive_message,
                self.receiver,
                groups,
                options,
                last=partial(delivery_timestamp, clock),
            ),
            ack_message=named(pb.AckMessageResponse, ack_message, acks),
            change_invisible_duration=named(
                pb.ChangeInvisibleDurationResponse,
                change_invisible_duration,
                acks,
                groups,
                options,
            ),
            forward_message_to_dead_letter_queue=named(
                pb.ForwardMessageToDeadLetterQueueResponse,
                forward_to_dead_letter_queue,
                acks,
                self.lease_renewal,
            ),
            pull_message=streaming(
                pb.PullMessageResponse, pull_message, calls, options, self.in_flight
            ),
            get_offset=unary(pb.GetOffsetResponse, get_offset, calls),
            update_offset=unary(pb.UpdateOffsetResponse, update_offset, calls),
            query_offset=unary(pb.QueryOffsetResponse, query_offset, calls),
        )

    def _admin_rpcs(self) -> SimpleNamespace:
        """Return the handlers of the RPCs of Admin. Their names are in snake_case."""
        options, clock, sessions = self.options, self.clock, self.sessions
        administration = Administration(self.calls, self.route_cache)
        return handlers(
            AdminCalls(self.authentication, self.counts, options.tls_cluster_name, self.audit),
            topics=TopicRpcs(self.route_cache, options.tls_cluster_name),
            groups=GroupRpcs(administration, clock),
            clients=ClientRpcs(administration, sessions, self.client_commands, self._options),
            messages=MessageRpcs(administration, self.sender, self._options, clock),
            process=ProcessRpcs(sessions, self.rates, name=self._name, set_level=self._set_level),
        )

    async def _set_level(self, level: str) -> None:
        """Change the log level of this process. Raises the errors of `RuntimeConfig.update`."""
        await self.config.update({"logLevel": level})
