"""Open the store of a broker with its options, its log events and the codes of its topics."""

from __future__ import annotations

import socket
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path

import structlog

from aerobee_broker.config import BrokerOptions
from aerobee_broker.delivery.delay.levels import deliver_time
from aerobee_broker.delivery.delay.timer_format import unit_code
from aerobee_broker.delivery.lite.lines import lite_unit_code, parents_on_disk
from aerobee_broker.disk import Disk
from aerobee_broker.metadata.incremental_table import load_table
from aerobee_broker.metadata.topics import Topics
from aerobee_broker.store.derived.topic_encoding import TagsCode
from aerobee_broker.store.format import REPLICATED_LOG
from aerobee_broker.store.message_store import MessageStore
from aerobee_broker.store.options import HOUR_MS, StoreOptions
from aerobee_broker.wiring.environment import Environment
from aerobee_chassis.clock import SystemClock
from aerobee_wire import topics as names
from aerobee_wire.queues.lite import LITE

_WARNINGS = frozenset(
    {
        "allocation_failed",
        "deletion_found_in_log",
        "directory_left",
        "disk_full",
        "file_unreadable",
        "flush_put_off",
        "format_not_written",
    }
)
_ERRORS = frozenset({"corrupt_record", "store_read_only"})


def open_store(environment: Environment, store_host: str) -> MessageStore:
    """Open the store. Blocks, for a long time after a crash.

    `store_host` is the "ip:port" in offset message ids. Raises StoreOpenError. Its subclass
    StoreTooNew is raised before any file of the store is changed.
    """

    def on_event(event: str, fields: Mapping[str, object]) -> None:
        log = structlog.get_logger()
        if event == "corrupt_record":
            environment.metrics.corrupted()
        write = log.error if event in _ERRORS else log.warning if event in _WARNINGS else log.info
        write(event, **fields)

    environment.format.load()
    owner = owner_of(environment.options)
    environment.format.check_owner(owner)
    store = MessageStore(
        environment.path,
        store_options(environment.options),
        clock=environment.clock,
        disk=environment.disk,
        store_host=store_host,
        tags_code_of=unit_codes(environment.disk, environment.path, environment.options),
        on_event=on_event,
    ).open()
    features = {REPLICATED_LOG} if environment.options.is_replicated else ()
    if reason := environment.format.note(features, owner):
        on_event("format_not_written", {"file": str(environment.format.path), "reason": reason})
    return store


def owner_of(options: BrokerOptions) -> str:
    """Return the cluster and the name of a broker that owns a store.

    Return "" if the name is that of the host: a new container with the old volume has another one.
    """
    if options.broker_name == socket.gethostname():
        return ""
    return f"{options.broker_cluster_name}/{options.broker_name}"


def store_options(options: BrokerOptions) -> StoreOptions:
    return StoreOptions(
        commit_log_file_size=options.mapped_file_size_commit_log,
        consume_queue_file_size=options.mapped_file_size_consume_queue,
        max_message_size=options.max_message_size,
        whole_crc=options.enabled_append_prop_crc,
        check_crc_on_recover=options.check_crc_on_recover,
        index_enabled=options.message_index_enable,
        index_slot_count=options.max_hash_slot_num,
        index_entry_count=options.max_index_num,
        file_reserved_time_ms=options.file_reserved_time * HOUR_MS,
        delete_when=options.delete_hours,
        retain_bytes=options.retain_bytes,
        delete_file_batch_max=options.delete_file_batch_max,
        clean_interval_ms=options.clean_resource_interval,
        disk_max_used_ratio=options.disk_max_used_space_ratio,
        disk_clean_forcibly_ratio=options.disk_space_clean_forcibly_ratio,
        disk_warning_ratio=options.disk_space_warning_level_ratio,
        disk_stop_ratio=options.disk_space_stop_ratio,
        clean_file_forcibly=options.clean_file_forcibly_enable,
        disk_min_free_bytes=options.disk_min_free_bytes,
        replicated=options.is_replicated,
    )


def unit_codes(disk: Disk, path: Path, options: BrokerOptions) -> dict[str, TagsCode]:
    """Return the result of `codes_of` for the LITE topics in the store at `path`.

    Raises ConfigFileDamaged.
    """
    parents = parents_on_disk(disk, path / "lite") if is_of_replica(disk, path, options) else None
    if parents is None:
        topics = Topics(SystemClock())
        load_table(topics, disk, path / "config" / "topics.json")
        parents = [each.topic for each in topics.all() if each.message_type == LITE]
    return codes_of(options, parents)


def is_of_replica(disk: Disk, path: Path, options: BrokerOptions) -> bool:
    """Return whether the log at `path` has replicas, by `options` or by the files of the store.

    The tables of such a store may be older than its log. `options` need not be the options of the
    store's broker.
    """
    return options.is_replicated or disk.exists(path / "config" / "epochs.json")


def codes_of(options: BrokerOptions, parents: Iterable[str]) -> dict[str, TagsCode]:
    """Return a map from topic to the function that makes the code in its consume queue entries.

    Other topics have the hash of the tags as code. `parents` contains the topics of the type LITE.
    """
    return {
        names.SCHEDULE_TOPIC: partial(deliver_time, options.delay_levels_ms),
        names.TIMER_TOPIC: unit_code,
        **dict.fromkeys(parents, lite_unit_code),
    }
