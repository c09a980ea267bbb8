"""Which handler serves which RPC of NamesrvService: a table, nothing else."""

from __future__ import annotations

from aerobee_namesrv.rpc.brokers import BrokerRpcs
from aerobee_namesrv.rpc.edits import EditRpcs
from aerobee_namesrv.rpc.kv import KvRpcs
from aerobee_namesrv.rpc.routes import RouteRpcs
from aerobee_namesrv.rpc.runtime import RuntimeRpcs


class Servicer:
    def __init__(
        self,
        brokers: BrokerRpcs,
        routes: RouteRpcs,
        edits: EditRpcs,
        kv: KvRpcs,
        runtime: RuntimeRpcs,
    ) -> None:
        self.register_broker = brokers.register_broker
        self.unregister_broker = brokers.unregister_broker
        self.broker_heartbeat = brokers.broker_heartbeat
        self.query_data_version = brokers.query_data_version
        self.watch_registration = brokers.watch_registration

        self.get_topic_route = routes.get_topic_route
        self.list_topics = routes.list_topics
        self.get_cluster_info = routes.get_cluster_info
        self.get_broker_member_group = routes.get_broker_member_group

        self.wipe_write_permission = edits.wipe_write_permission
        self.add_write_permission = edits.add_write_permission
        self.delete_topic = edits.delete_topic
        self.register_topic = edits.register_topic

        self.put_kv_config = kv.put_kv_config
        self.get_kv_config = kv.get_kv_config
        self.delete_kv_config = kv.delete_kv_config
        self.list_kv_config = kv.list_kv_config

        self.get_runtime_config = runtime.get_runtime_config
        self.update_runtime_config = runtime.update_runtime_config
