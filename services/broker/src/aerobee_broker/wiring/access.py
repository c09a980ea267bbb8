"""Keep the access table of a broker, serve it, and exchange it with name servers.

A replica has a table of its own in each role. It is not part of the replicated log.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from functools import partial

import structlog
from aerobee.access.v1 import access_pb2
from aerobee.audit.v1 import audit_pb2

from aerobee_broker.cluster.registration import unreachable
from aerobee_broker.config import BrokerOptions
from aerobee_chassis import logs
from aerobee_chassis.background import BackgroundTask, PeriodicTask
from aerobee_chassis.clock import Clock
from aerobee_chassis.errors import StartError
from aerobee_chassis.lifecycle import Component, Step
from aerobee_chassis.rpc.caller import Caller
from aerobee_chassis.rpc.services import Service, bind
from aerobee_cluster.access.audit_lines import AuditHandlers
from aerobee_cluster.access.exchange import TableExchange
from aerobee_cluster.access.first_user import read_first_user
from aerobee_cluster.access.handlers import AccessHandlers
from aerobee_cluster.access.metering import CallMeter
from aerobee_cluster.access.quota_buckets import QuotaBuckets
from aerobee_cluster.access.store import KEEP_CURRENT_S, AccessStore, save_in
from aerobee_wire.access.users import User
from aerobee_wire.permissions import Permissions
from aerobee_wire.status import Code, MqError

_SERVICE = access_pb2.DESCRIPTOR.services_by_name["BrokerAccessService"]
_AUDIT_SERVICE = audit_pb2.DESCRIPTOR.services_by_name["BrokerAuditService"]


class BrokerAccess:
    """The access table of one broker process.

    `services` are services of its port. `checks` checks the callers of all services, and `meter`
    holds them to their quotas. `audit` is the audit log, or None; it starts before the server.
    """

    def __init__(self, options: BrokerOptions, namesrvs: Sequence[str], clock: Clock) -> None:
        root = options.store_path_root_dir.expanduser()
        self._path = root / "config" / "accessTable.json"
        self._options = options
        self._namesrvs = namesrvs
        self._first_user: User | None = None
        node = f"broker-{secrets.token_hex(4)}"
        self.store = AccessStore(node, clock.now_ms, save_in(self._path))
        self.audit = options.audit(clock)
        self.checks = options.access(
            Permissions(options.tls_cluster_name, options.broker_name),
            self.store.table.user,
            clock,
            self.audit,
        )
        self.meter = CallMeter(QuotaBuckets(self.store.table, lambda: clock.monotonic_ms() / 1_000))
        log = structlog.get_logger().info
        self.services: tuple[Service, ...] = (
            bind(_SERVICE, AccessHandlers(self.store, private=options.checks_callers, log=log)),
            bind(_AUDIT_SERVICE, AuditHandlers(self.audit.reader if self.audit else None)),
        )

    def restore(self) -> None:
        """Read the file, if there is one, and the first user. Raises StartError."""
        given = self._options.init_authentication_user.get_secret_value()
        try:
            self._first_user = read_first_user(given)
        except MqError as error:
            raise StartError(error.message, error.about) from None
        if self._first_user is not None:
            logs.SECRETS.hide("first user", self._first_user.secrets)
        try:
            self.store.restore_file(self._path)
        except (OSError, ValueError) as error:
            problem = f"the access table {self._path} cannot be read: {error}"
            raise StartError(f"{problem}; {_REMEDY}", str(self._path)) from None
        logs.hide_users([user.name for user in self.store.table.users()], self.store.user)
        if self.store.is_stale and len(self.store.table):
            structlog.get_logger().warning("access_table_stale", path=str(self._path))

    def components(self) -> tuple[Component, ...]:
        """Return the components to start after the server, on real time."""
        recheck = BackgroundTask("access recheck", partial(self.store.notify, self._users_changed))
        if not self._namesrvs:
            first = BackgroundTask("first user", self._create_first_user)
            return (first, Step(stop=self.store.close), recheck)
        error_of = unreachable(Code.NAMESRV_UNREACHABLE, "name server")
        caller = Caller(error_of, self._options.peer_tls())
        exchange = TableExchange(caller, self._namesrvs, self.store, sends=True, on_lost=_log_lost)
        return (
            Step(stop=caller.close),
            PeriodicTask("access table", KEEP_CURRENT_S, self.store.keep_current),
            BackgroundTask("access exchange", exchange.run),
            BackgroundTask("first user", partial(self._create_first_user, exchange)),
            Step(stop=self.store.close),
            recheck,
        )

    def _users_changed(self, names: set[str]) -> None:
        logs.hide_users(names, self.store.user)
        self.checks.recheck(names)

    async def _create_first_user(self, exchange: TableExchange | None = None) -> None:
        """Create the first user if name servers have none either."""
        if exchange is not None:
            await exchange.complete.wait()
        user = self._first_user
        if user is not None and await self.store.create_first(user):
            structlog.get_logger().info("first_user_created", user=user.name)


_REMEDY = "restore it, or move it away: the name servers have the table too"


def _log_lost(namesrv: str, failure: Exception | None) -> None:
    log = structlog.get_logger()
    if failure is None or isinstance(failure, MqError):
        reason = "it ended the stream" if failure is None else failure.message
        log.info("access_exchange_lost", namesrv=namesrv, reason=reason)
    else:
        log.error("access_exchange_failed", namesrv=namesrv, exc_info=failure)
