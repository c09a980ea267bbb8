from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DataVersion(_message.Message):
    __slots__ = ("state_version", "timestamp_ms", "counter")
    STATE_VERSION_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_MS_FIELD_NUMBER: _ClassVar[int]
    COUNTER_FIELD_NUMBER: _ClassVar[int]
    state_version: int
    timestamp_ms: int
    counter: int
    def __init__(self, state_version: _Optional[int] = ..., timestamp_ms: _Optional[int] = ..., counter: _Optional[int] = ...) -> None: ...

class TopicConfig(_message.Message):
    __slots__ = ("topic", "read_queue_count", "write_queue_count", "permission", "topic_sys_flag", "order", "attributes")
    class AttributesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    READ_QUEUE_COUNT_FIELD_NUMBER: _ClassVar[int]
    WRITE_QUEUE_COUNT_FIELD_NUMBER: _ClassVar[int]
    PERMISSION_FIELD_NUMBER: _ClassVar[int]
    TOPIC_SYS_FLAG_FIELD_NUMBER: _ClassVar[int]
    ORDER_FIELD_NUMBER: _ClassVar[int]
    ATTRIBUTES_FIELD_NUMBER: _ClassVar[int]
    topic: str
    read_queue_count: int
    write_queue_count: int
    permission: int
    topic_sys_flag: int
    order: bool
    attributes: _containers.ScalarMap[str, str]
    def __init__(self, topic: _Optional[str] = ..., read_queue_count: _Optional[int] = ..., write_queue_count: _Optional[int] = ..., permission: _Optional[int] = ..., topic_sys_flag: _Optional[int] = ..., order: _Optional[bool] = ..., attributes: _Optional[_Mapping[str, str]] = ...) -> None: ...

class LogRecord(_message.Message):
    __slots__ = ("store_id", "generation", "end_offset", "epoch")
    STORE_ID_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    store_id: str
    generation: int
    end_offset: int
    epoch: int
    def __init__(self, store_id: _Optional[str] = ..., generation: _Optional[int] = ..., end_offset: _Optional[int] = ..., epoch: _Optional[int] = ...) -> None: ...

class RecordLogsRequest(_message.Message):
    __slots__ = ("cluster", "broker_name", "records")
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    BROKER_NAME_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    cluster: str
    broker_name: str
    records: _containers.RepeatedCompositeFieldContainer[LogRecord]
    def __init__(self, cluster: _Optional[str] = ..., broker_name: _Optional[str] = ..., records: _Optional[_Iterable[_Union[LogRecord, _Mapping]]] = ...) -> None: ...

class RecordLogsResponse(_message.Message):
    __slots__ = ("records",)
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    records: _containers.RepeatedCompositeFieldContainer[LogRecord]
    def __init__(self, records: _Optional[_Iterable[_Union[LogRecord, _Mapping]]] = ...) -> None: ...

class RegisterBrokerRequest(_message.Message):
    __slots__ = ("cluster", "broker_name", "broker_id", "broker_address", "ha_server_address", "data_version", "topics", "incremental", "heartbeat_timeout_ms", "enable_acting_master", "zone_name", "filter_servers", "watch_follows", "removed_topics", "process_id", "store_id", "number", "start_timestamp_ms")
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    BROKER_NAME_FIELD_NUMBER: _ClassVar[int]
    BROKER_ID_FIELD_NUMBER: _ClassVar[int]
    BROKER_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    HA_SERVER_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    DATA_VERSION_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    INCREMENTAL_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    ENABLE_ACTING_MASTER_FIELD_NUMBER: _ClassVar[int]
    ZONE_NAME_FIELD_NUMBER: _ClassVar[int]
    FILTER_SERVERS_FIELD_NUMBER: _ClassVar[int]
    WATCH_FOLLOWS_FIELD_NUMBER: _ClassVar[int]
    REMOVED_TOPICS_FIELD_NUMBER: _ClassVar[int]
    PROCESS_ID_FIELD_NUMBER: _ClassVar[int]
    STORE_ID_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    START_TIMESTAMP_MS_FIELD_NUMBER: _ClassVar[int]
    cluster: str
    broker_name: str
    broker_id: int
    broker_address: str
    ha_server_address: str
    data_version: DataVersion
    topics: _containers.RepeatedCompositeFieldContainer[TopicConfig]
    incremental: bool
    heartbeat_timeout_ms: int
    enable_acting_master: bool
    zone_name: str
    filter_servers: FilterServers
    watch_follows: bool
    removed_topics: _containers.RepeatedScalarFieldContainer[str]
    process_id: str
    store_id: str
    number: int
    start_timestamp_ms: int
    def __init__(self, cluster: _Optional[str] = ..., broker_name: _Optional[str] = ..., broker_id: _Optional[int] = ..., broker_address: _Optional[str] = ..., ha_server_address: _Optional[str] = ..., data_version: _Optional[_Union[DataVersion, _Mapping]] = ..., topics: _Optional[_Iterable[_Union[TopicConfig, _Mapping]]] = ..., incremental: _Optional[bool] = ..., heartbeat_timeout_ms: _Optional[int] = ..., enable_acting_master: _Optional[bool] = ..., zone_name: _Optional[str] = ..., filter_servers: _Optional[_Union[FilterServers, _Mapping]] = ..., watch_follows: _Optional[bool] = ..., removed_topics: _Optional[_Iterable[str]] = ..., process_id: _Optional[str] = ..., store_id: _Optional[str] = ..., number: _Optional[int] = ..., start_timestamp_ms: _Optional[int] = ...) -> None: ...

class FilterServers(_message.Message):
    __slots__ = ("addresses",)
    ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    addresses: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, addresses: _Optional[_Iterable[str]] = ...) -> None: ...

class RegisterBrokerResponse(_message.Message):
    __slots__ = ("master_address", "ha_server_address", "order_topic_config", "rejected", "in_use")
    class OrderTopicConfigEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    MASTER_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    HA_SERVER_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    ORDER_TOPIC_CONFIG_FIELD_NUMBER: _ClassVar[int]
    REJECTED_FIELD_NUMBER: _ClassVar[int]
    IN_USE_FIELD_NUMBER: _ClassVar[int]
    master_address: str
    ha_server_address: str
    order_topic_config: _containers.ScalarMap[str, str]
    rejected: bool
    in_use: BrokerProcess
    def __init__(self, master_address: _Optional[str] = ..., ha_server_address: _Optional[str] = ..., order_topic_config: _Optional[_Mapping[str, str]] = ..., rejected: _Optional[bool] = ..., in_use: _Optional[_Union[BrokerProcess, _Mapping]] = ...) -> None: ...

class BrokerProcess(_message.Message):
    __slots__ = ("broker_address", "store_id", "start_timestamp_ms")
    BROKER_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    STORE_ID_FIELD_NUMBER: _ClassVar[int]
    START_TIMESTAMP_MS_FIELD_NUMBER: _ClassVar[int]
    broker_address: str
    store_id: str
    start_timestamp_ms: int
    def __init__(self, broker_address: _Optional[str] = ..., store_id: _Optional[str] = ..., start_timestamp_ms: _Optional[int] = ...) -> None: ...

class BrokerConflict(_message.Message):
    __slots__ = ("cluster", "broker_name", "number", "holder", "newcomer")
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    BROKER_NAME_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    HOLDER_FIELD_NUMBER: _ClassVar[int]
    NEWCOMER_FIELD_NUMBER: _ClassVar[int]
    cluster: str
    broker_name: str
    number: int
    holder: BrokerProcess
    newcomer: BrokerProcess
    def __init__(self, cluster: _Optional[str] = ..., broker_name: _Optional[str] = ..., number: _Optional[int] = ..., holder: _Optional[_Union[BrokerProcess, _Mapping]] = ..., newcomer: _Optional[_Union[BrokerProcess, _Mapping]] = ...) -> None: ...

class UnregisterBrokerRequest(_message.Message):
    __slots__ = ("cluster", "broker_name", "broker_id", "broker_address", "will_return")
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    BROKER_NAME_FIELD_NUMBER: _ClassVar[int]
    BROKER_ID_FIELD_NUMBER: _ClassVar[int]
    BROKER_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    WILL_RETURN_FIELD_NUMBER: _ClassVar[int]
    cluster: str
    broker_name: str
    broker_id: int
    broker_address: str
    will_return: bool
    def __init__(self, cluster: _Optional[str] = ..., broker_name: _Optional[str] = ..., broker_id: _Optional[int] = ..., broker_address: _Optional[str] = ..., will_return: _Optional[bool] = ...) -> None: ...

class UnregisterBrokerResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class BrokerHeartbeatRequest(_message.Message):
    __slots__ = ("cluster", "broker_name", "broker_address")
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    BROKER_NAME_FIELD_NUMBER: _ClassVar[int]
    BROKER_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    cluster: str
    broker_name: str
    broker_address: str
    def __init__(self, cluster: _Optional[str] = ..., broker_name: _Optional[str] = ..., broker_address: _Optional[str] = ...) -> None: ...

class BrokerHeartbeatResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class QueryDataVersionRequest(_message.Message):
    __slots__ = ("cluster", "broker_name", "broker_address", "data_version")
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    BROKER_NAME_FIELD_NUMBER: _ClassVar[int]
    BROKER_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    DATA_VERSION_FIELD_NUMBER: _ClassVar[int]
    cluster: str
    broker_name: str
    broker_address: str
    data_version: DataVersion
    def __init__(self, cluster: _Optional[str] = ..., broker_name: _Optional[str] = ..., broker_address: _Optional[str] = ..., data_version: _Optional[_Union[DataVersion, _Mapping]] = ...) -> None: ...

class QueryDataVersionResponse(_message.Message):
    __slots__ = ("changed", "data_version")
    CHANGED_FIELD_NUMBER: _ClassVar[int]
    DATA_VERSION_FIELD_NUMBER: _ClassVar[int]
    changed: bool
    data_version: DataVersion
    def __init__(self, changed: _Optional[bool] = ..., data_version: _Optional[_Union[DataVersion, _Mapping]] = ...) -> None: ...

class WatchRegistrationRequest(_message.Message):
    __slots__ = ("cluster", "broker_name", "broker_id", "broker_address")
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    BROKER_NAME_FIELD_NUMBER: _ClassVar[int]
    BROKER_ID_FIELD_NUMBER: _ClassVar[int]
    BROKER_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    cluster: str
    broker_name: str
    broker_id: int
    broker_address: str
    def __init__(self, cluster: _Optional[str] = ..., broker_name: _Optional[str] = ..., broker_id: _Optional[int] = ..., broker_address: _Optional[str] = ...) -> None: ...

class BrokerNotice(_message.Message):
    __slots__ = ("min_broker_id_changed",)
    MIN_BROKER_ID_CHANGED_FIELD_NUMBER: _ClassVar[int]
    min_broker_id_changed: MinBrokerIdChanged
    def __init__(self, min_broker_id_changed: _Optional[_Union[MinBrokerIdChanged, _Mapping]] = ...) -> None: ...

class MinBrokerIdChanged(_message.Message):
    __slots__ = ("min_broker_id", "min_broker_address", "offline_broker_address", "ha_broker_address")
    MIN_BROKER_ID_FIELD_NUMBER: _ClassVar[int]
    MIN_BROKER_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    OFFLINE_BROKER_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    HA_BROKER_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    min_broker_id: int
    min_broker_address: str
    offline_broker_address: str
    ha_broker_address: str
    def __init__(self, min_broker_id: _Optional[int] = ..., min_broker_address: _Optional[str] = ..., offline_broker_address: _Optional[str] = ..., ha_broker_address: _Optional[str] = ...) -> None: ...

class RegisterProxyRequest(_message.Message):
    __slots__ = ("name", "process_id", "version", "start_timestamp_ms", "admin_address")
    NAME_FIELD_NUMBER: _ClassVar[int]
    PROCESS_ID_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    START_TIMESTAMP_MS_FIELD_NUMBER: _ClassVar[int]
    ADMIN_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    name: str
    process_id: str
    version: str
    start_timestamp_ms: int
    admin_address: str
    def __init__(self, name: _Optional[str] = ..., process_id: _Optional[str] = ..., version: _Optional[str] = ..., start_timestamp_ms: _Optional[int] = ..., admin_address: _Optional[str] = ...) -> None: ...

class RegisterProxyResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class UnregisterProxyRequest(_message.Message):
    __slots__ = ("name", "process_id")
    NAME_FIELD_NUMBER: _ClassVar[int]
    PROCESS_ID_FIELD_NUMBER: _ClassVar[int]
    name: str
    process_id: str
    def __init__(self, name: _Optional[str] = ..., process_id: _Optional[str] = ...) -> None: ...

class UnregisterProxyResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetTopicRouteRequest(_message.Message):
    __slots__ = ("topic", "zone_name")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    ZONE_NAME_FIELD_NUMBER: _ClassVar[int]
    topic: str
    zone_name: str
    def __init__(self, topic: _Optional[str] = ..., zone_name: _Optional[str] = ...) -> None: ...

class GetTopicRouteResponse(_message.Message):
    __slots__ = ("route", "away_brokers")
    ROUTE_FIELD_NUMBER: _ClassVar[int]
    AWAY_BROKERS_FIELD_NUMBER: _ClassVar[int]
    route: TopicRoute
    away_brokers: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, route: _Optional[_Union[TopicRoute, _Mapping]] = ..., away_brokers: _Optional[_Iterable[str]] = ...) -> None: ...

class TopicRoute(_message.Message):
    __slots__ = ("queues", "brokers", "filter_servers", "order_topic_config")
    class FilterServersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: FilterServers
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[FilterServers, _Mapping]] = ...) -> None: ...
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    BROKERS_FIELD_NUMBER: _ClassVar[int]
    FILTER_SERVERS_FIELD_NUMBER: _ClassVar[int]
    ORDER_TOPIC_CONFIG_FIELD_NUMBER: _ClassVar[int]
    queues: _containers.RepeatedCompositeFieldContainer[QueueData]
    brokers: _containers.RepeatedCompositeFieldContainer[BrokerData]
    filter_servers: _containers.MessageMap[str, FilterServers]
    order_topic_config: str
    def __init__(self, queues: _Optional[_Iterable[_Union[QueueData, _Mapping]]] = ..., brokers: _Optional[_Iterable[_Union[BrokerData, _Mapping]]] = ..., filter_servers: _Optional[_Mapping[str, FilterServers]] = ..., order_topic_config: _Optional[str] = ...) -> None: ...

class QueueData(_message.Message):
    __slots__ = ("broker_name", "read_queue_count", "write_queue_count", "permission", "topic_sys_flag", "attributes")
    class AttributesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    BROKER_NAME_FIELD_NUMBER: _ClassVar[int]
    READ_QUEUE_COUNT_FIELD_NUMBER: _ClassVar[int]
    WRITE_QUEUE_COUNT_FIELD_NUMBER: _ClassVar[int]
    PERMISSION_FIELD_NUMBER: _ClassVar[int]
    TOPIC_SYS_FLAG_FIELD_NUMBER: _ClassVar[int]
    ATTRIBUTES_FIELD_NUMBER: _ClassVar[int]
    broker_name: str
    read_queue_count: int
    write_queue_count: int
    permission: int
    topic_sys_flag: int
    attributes: _containers.ScalarMap[str, str]
    def __init__(self, broker_name: _Optional[str] = ..., read_queue_count: _Optional[int] = ..., write_queue_count: _Optional[int] = ..., permission: _Optional[int] = ..., topic_sys_flag: _Optional[int] = ..., attributes: _Optional[_Mapping[str, str]] = ...) -> None: ...

class BrokerData(_message.Message):
    __slots__ = ("cluster", "broker_name", "addresses", "zone_name", "enable_acting_master", "epoch")
    class AddressesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: str
        def __init__(self, key: _Optional[int] = ..., value: _Optional[str] = ...) -> None: ...
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    BROKER_NAME_FIELD_NUMBER: _ClassVar[int]
    ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    ZONE_NAME_FIELD_NUMBER: _ClassVar[int]
    ENABLE_ACTING_MASTER_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    cluster: str
    broker_name: str
    addresses: _containers.ScalarMap[int, str]
    zone_name: str
    enable_acting_master: bool
    epoch: int
    def __init__(self, cluster: _Optional[str] = ..., broker_name: _Optional[str] = ..., addresses: _Optional[_Mapping[int, str]] = ..., zone_name: _Optional[str] = ..., enable_acting_master: _Optional[bool] = ..., epoch: _Optional[int] = ...) -> None: ...

class ListTopicsRequest(_message.Message):
    __slots__ = ("scope", "cluster", "broker_name")
    class Scope(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        ALL: _ClassVar[ListTopicsRequest.Scope]
        CLUSTER: _ClassVar[ListTopicsRequest.Scope]
        SYSTEM: _ClassVar[ListTopicsRequest.Scope]
        UNIT: _ClassVar[ListTopicsRequest.Scope]
        HAS_UNIT_SUBSCRIPTION: _ClassVar[ListTopicsRequest.Scope]
        HAS_UNIT_SUBSCRIPTION_AND_NOT_UNIT: _ClassVar[ListTopicsRequest.Scope]
        BROKER: _ClassVar[ListTopicsRequest.Scope]
    ALL: ListTopicsRequest.Scope
    CLUSTER: ListTopicsRequest.Scope
    SYSTEM: ListTopicsRequest.Scope
    UNIT: ListTopicsRequest.Scope
    HAS_UNIT_SUBSCRIPTION: ListTopicsRequest.Scope
    HAS_UNIT_SUBSCRIPTION_AND_NOT_UNIT: ListTopicsRequest.Scope
    BROKER: ListTopicsRequest.Scope
    SCOPE_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    BROKER_NAME_FIELD_NUMBER: _ClassVar[int]
    scope: ListTopicsRequest.Scope
    cluster: str
    broker_name: str
    def __init__(self, scope: _Optional[_Union[ListTopicsRequest.Scope, str]] = ..., cluster: _Optional[str] = ..., broker_name: _Optional[str] = ...) -> None: ...

class ListTopicsResponse(_message.Message):
    __slots__ = ("topics", "broker_address")
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    BROKER_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    topics: _containers.RepeatedScalarFieldContainer[str]
    broker_address: str
    def __init__(self, topics: _Optional[_Iterable[str]] = ..., broker_address: _Optional[str] = ...) -> None: ...

class GetClusterInfoRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetClusterInfoResponse(_message.Message):
    __slots__ = ("brokers", "clusters", "live_brokers", "conflicts", "away_brokers", "proxies", "away_proxies")
    class ClustersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: BrokerNames
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[BrokerNames, _Mapping]] = ...) -> None: ...
    BROKERS_FIELD_NUMBER: _ClassVar[int]
    CLUSTERS_FIELD_NUMBER: _ClassVar[int]
    LIVE_BROKERS_FIELD_NUMBER: _ClassVar[int]
    CONFLICTS_FIELD_NUMBER: _ClassVar[int]
    AWAY_BROKERS_FIELD_NUMBER: _ClassVar[int]
    PROXIES_FIELD_NUMBER: _ClassVar[int]
    AWAY_PROXIES_FIELD_NUMBER: _ClassVar[int]
    brokers: _containers.RepeatedCompositeFieldContainer[BrokerData]
    clusters: _containers.MessageMap[str, BrokerNames]
    live_brokers: _containers.RepeatedCompositeFieldContainer[LiveBroker]
    conflicts: _containers.RepeatedCompositeFieldContainer[BrokerConflict]
    away_brokers: _containers.RepeatedCompositeFieldContainer[AwayBroker]
    proxies: _containers.RepeatedCompositeFieldContainer[ProxyData]
    away_proxies: _containers.RepeatedCompositeFieldContainer[AwayProxy]
    def __init__(self, brokers: _Optional[_Iterable[_Union[BrokerData, _Mapping]]] = ..., clusters: _Optional[_Mapping[str, BrokerNames]] = ..., live_brokers: _Optional[_Iterable[_Union[LiveBroker, _Mapping]]] = ..., conflicts: _Optional[_Iterable[_Union[BrokerConflict, _Mapping]]] = ..., away_brokers: _Optional[_Iterable[_Union[AwayBroker, _Mapping]]] = ..., proxies: _Optional[_Iterable[_Union[ProxyData, _Mapping]]] = ..., away_proxies: _Optional[_Iterable[_Union[AwayProxy, _Mapping]]] = ...) -> None: ...

class ProxyData(_message.Message):
    __slots__ = ("name", "version", "start_timestamp_ms", "admin_address")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    START_TIMESTAMP_MS_FIELD_NUMBER: _ClassVar[int]
    ADMIN_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    name: str
    version: str
    start_timestamp_ms: int
    admin_address: str
    def __init__(self, name: _Optional[str] = ..., version: _Optional[str] = ..., start_timestamp_ms: _Optional[int] = ..., admin_address: _Optional[str] = ...) -> None: ...

class AwayProxy(_message.Message):
    __slots__ = ("name", "since_timestamp_ms")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SINCE_TIMESTAMP_MS_FIELD_NUMBER: _ClassVar[int]
    name: str
    since_timestamp_ms: int
    def __init__(self, name: _Optional[str] = ..., since_timestamp_ms: _Optional[int] = ...) -> None: ...

class AwayBroker(_message.Message):
    __slots__ = ("cluster", "broker_name")
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    BROKER_NAME_FIELD_NUMBER: _ClassVar[int]
    cluster: str
    broker_name: str
    def __init__(self, cluster: _Optional[str] = ..., broker_name: _Optional[str] = ...) -> None: ...

class BrokerNames(_message.Message):
    __slots__ = ("names",)
    NAMES_FIELD_NUMBER: _ClassVar[int]
    names: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, names: _Optional[_Iterable[str]] = ...) -> None: ...

class LiveBroker(_message.Message):
    __slots__ = ("cluster", "broker_address", "last_update_timestamp_ms", "heartbeat_timeout_ms", "data_version", "ha_server_address")
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    BROKER_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    LAST_UPDATE_TIMESTAMP_MS_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    DATA_VERSION_FIELD_NUMBER: _ClassVar[int]
    HA_SERVER_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    cluster: str
    broker_address: str
    last_update_timestamp_ms: int
    heartbeat_timeout_ms: int
    data_version: DataVersion
    ha_server_address: str
    def __init__(self, cluster: _Optional[str] = ..., broker_address: _Optional[str] = ..., last_update_timestamp_ms: _Optional[int] = ..., heartbeat_timeout_ms: _Optional[int] = ..., data_version: _Optional[_Union[DataVersion, _Mapping]] = ..., ha_server_address: _Optional[str] = ...) -> None: ...

class WatchBrokersRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class WatchBrokersResponse(_message.Message):
    __slots__ = ("brokers",)
    BROKERS_FIELD_NUMBER: _ClassVar[int]
    brokers: _containers.RepeatedCompositeFieldContainer[BrokerMembers]
    def __init__(self, brokers: _Optional[_Iterable[_Union[BrokerMembers, _Mapping]]] = ...) -> None: ...

class BrokerMembers(_message.Message):
    __slots__ = ("cluster", "broker_name", "addresses", "epoch")
    class AddressesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: str
        def __init__(self, key: _Optional[int] = ..., value: _Optional[str] = ...) -> None: ...
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    BROKER_NAME_FIELD_NUMBER: _ClassVar[int]
    ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    cluster: str
    broker_name: str
    addresses: _containers.ScalarMap[int, str]
    epoch: int
    def __init__(self, cluster: _Optional[str] = ..., broker_name: _Optional[str] = ..., addresses: _Optional[_Mapping[int, str]] = ..., epoch: _Optional[int] = ...) -> None: ...

class GetBrokerMemberGroupRequest(_message.Message):
    __slots__ = ("cluster", "broker_name")
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    BROKER_NAME_FIELD_NUMBER: _ClassVar[int]
    cluster: str
    broker_name: str
    def __init__(self, cluster: _Optional[str] = ..., broker_name: _Optional[str] = ...) -> None: ...

class GetBrokerMemberGroupResponse(_message.Message):
    __slots__ = ("addresses",)
    class AddressesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: str
        def __init__(self, key: _Optional[int] = ..., value: _Optional[str] = ...) -> None: ...
    ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    addresses: _containers.ScalarMap[int, str]
    def __init__(self, addresses: _Optional[_Mapping[int, str]] = ...) -> None: ...

class WipeWritePermissionRequest(_message.Message):
    __slots__ = ("broker_name",)
    BROKER_NAME_FIELD_NUMBER: _ClassVar[int]
    broker_name: str
    def __init__(self, broker_name: _Optional[str] = ...) -> None: ...

class AddWritePermissionRequest(_message.Message):
    __slots__ = ("broker_name",)
    BROKER_NAME_FIELD_NUMBER: _ClassVar[int]
    broker_name: str
    def __init__(self, broker_name: _Optional[str] = ...) -> None: ...

class WritePermissionResponse(_message.Message):
    __slots__ = ("topic_count",)
    TOPIC_COUNT_FIELD_NUMBER: _ClassVar[int]
    topic_count: int
    def __init__(self, topic_count: _Optional[int] = ...) -> None: ...

class DeleteTopicRequest(_message.Message):
    __slots__ = ("topic", "cluster")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    topic: str
    cluster: str
    def __init__(self, topic: _Optional[str] = ..., cluster: _Optional[str] = ...) -> None: ...

class DeleteTopicResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class RegisterTopicRequest(_message.Message):
    __slots__ = ("topic", "queues")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    topic: str
    queues: _containers.RepeatedCompositeFieldContainer[QueueData]
    def __init__(self, topic: _Optional[str] = ..., queues: _Optional[_Iterable[_Union[QueueData, _Mapping]]] = ...) -> None: ...

class RegisterTopicResponse(_message.Message):
    __slots__ = ("registered",)
    REGISTERED_FIELD_NUMBER: _ClassVar[int]
    registered: bool
    def __init__(self, registered: _Optional[bool] = ...) -> None: ...

class PutKvConfigRequest(_message.Message):
    __slots__ = ("namespace", "key", "value")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    key: str
    value: str
    def __init__(self, namespace: _Optional[str] = ..., key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...

class PutKvConfigResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetKvConfigRequest(_message.Message):
    __slots__ = ("namespace", "key")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    key: str
    def __init__(self, namespace: _Optional[str] = ..., key: _Optional[str] = ...) -> None: ...

class GetKvConfigResponse(_message.Message):
    __slots__ = ("value",)
    VALUE_FIELD_NUMBER: _ClassVar[int]
    value: str
    def __init__(self, value: _Optional[str] = ...) -> None: ...

class DeleteKvConfigRequest(_message.Message):
    __slots__ = ("namespace", "key")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    key: str
    def __init__(self, namespace: _Optional[str] = ..., key: _Optional[str] = ...) -> None: ...

class DeleteKvConfigResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListKvConfigRequest(_message.Message):
    __slots__ = ("namespace",)
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    def __init__(self, namespace: _Optional[str] = ...) -> None: ...

class ListKvConfigResponse(_message.Message):
    __slots__ = ("entries",)
    class EntriesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    entries: _containers.ScalarMap[str, str]
    def __init__(self, entries: _Optional[_Mapping[str, str]] = ...) -> None: ...

class GetRuntimeConfigRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetRuntimeConfigResponse(_message.Message):
    __slots__ = ("entries", "sources", "changeable")
    class EntriesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    class SourcesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    SOURCES_FIELD_NUMBER: _ClassVar[int]
    CHANGEABLE_FIELD_NUMBER: _ClassVar[int]
    entries: _containers.ScalarMap[str, str]
    sources: _containers.ScalarMap[str, str]
    changeable: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, entries: _Optional[_Mapping[str, str]] = ..., sources: _Optional[_Mapping[str, str]] = ..., changeable: _Optional[_Iterable[str]] = ...) -> None: ...

class UpdateRuntimeConfigRequest(_message.Message):
    __slots__ = ("entries", "unset")
    class EntriesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    UNSET_FIELD_NUMBER: _ClassVar[int]
    entries: _containers.ScalarMap[str, str]
    unset: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, entries: _Optional[_Mapping[str, str]] = ..., unset: _Optional[_Iterable[str]] = ...) -> None: ...

class UpdateRuntimeConfigResponse(_message.Message):
    __slots__ = ("without_effect",)
    WITHOUT_EFFECT_FIELD_NUMBER: _ClassVar[int]
    without_effect: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, without_effect: _Optional[_Iterable[str]] = ...) -> None: ...
