"""Keep the key-value configuration in one JSON file of RocketMQ's format.

It maps namespace to key to value. Each change replaces the whole file and keeps the previous one as
`.bak`. So after a crash, at least one of the two files is intact. The file has a checksum, because
JSON with a flipped bit can still be valid. This module does not interpret the values.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

import structlog

from aerobee_chassis.errors import StartError
from aerobee_wire import checked_json, files
from aerobee_wire.files import replace_file
from aerobee_wire.status import Code, MqError

ORDER_TOPIC_CONFIG = "ORDER_TOPIC_CONFIG"  # the only namespace that the name server itself reads

Table = dict[str, dict[str, str]]


class KVConfigManager:
    """Own the table in memory and its file. Every change is durable when the call returns.

    `replace` writes the file; tests pass a function that fails. Only one process can use the file:
    `open` holds a lock beside it until `close`.
    """

    def __init__(self, path: Path, replace: Callable[[Path, bytes], None] = replace_file) -> None:
        self._path = path
        self._backup = path.with_name(path.name + ".bak")
        self._replace = replace
        self._lock: int | None = None
        self._table: Table = {}

    def open(self) -> None:
        """Load the file, or its backup if the file is damaged.

        Raises StartError if the directory cannot be used, if another name server uses the file, or
        if neither file can be read.
        """
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._hold()
            self._table = self._load()
        except OSError as error:
            problem = f"cannot use {self._path}: {error.strerror}"
            raise StartError(problem, str(self._path)) from None

    def close(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def get(self, namespace: str, key: str) -> str:
        """Return a value. Raises MqError with the code QUERY_NOT_FOUND for a missing key."""
        value = self._table.get(namespace, {}).get(key)
        if value is None:
            raise MqError(
                Code.QUERY_NOT_FOUND,
                f"there is no key {key!r} in namespace {namespace!r}; put it first",
                about="key",
            )
        return value

    def entries(self, namespace: str) -> Mapping[str, str]:
        """Return the map from key to value of a namespace.

        Raises MqError with the code QUERY_NOT_FOUND if the namespace does not exist.
        """
        if namespace not in self._table:
            raise MqError(
                Code.QUERY_NOT_FOUND,
                f"there is no namespace {namespace!r}; put a key into it first",
                about="namespace",
            )
        return self._table[namespace]

    def order_topic_config(self) -> Mapping[str, str]:
        """Return a map from topic to its ordered queues, for example "broker-a:4;broker-b:4"."""
        return self._table.get(ORDER_TOPIC_CONFIG, {})

    def put(self, namespace: str, key: str, value: str) -> None:
        """Store a value.

        Raises MqError with the code SYSTEM_ERROR if the file cannot be written. Then this table
        does not change, and the error says whether the file did.
        """
        self._write({**self._table, namespace: {**self._table.get(namespace, {}), key: value}})

    def delete(self, namespace: str, key: str) -> None:
        """Delete a key and keep its namespace, even if it becomes empty.

        A missing key is not an error. Raises the same MqError as `put`.
        """
        kept = dict(self._table.get(namespace, {}))
        if kept.pop(key, None) is not None:
            self._write({**self._table, namespace: kept})

    def _write(self, table: Table) -> None:
        try:
            # Write the backup from the table, not from the file, which may be damaged.
            self._replace(self._backup, _encode(self._table))
        except OSError as error:
            raise self._unwritten(error, "nothing was changed") from error
        try:
            self._replace(self._path, _encode(table))
        except OSError as error:
            raise self._unwritten(error, files.outcome_of(error)) from error
        self._table = table

    def _unwritten(self, error: OSError, outcome: str) -> MqError:
        return MqError(
            Code.SYSTEM_ERROR,
            f"cannot write {self._path}: {error.strerror}; {outcome}: retry",
            retryable=True,
        )

    def _load(self) -> Table:
        if not self._path.exists() and not self._backup.exists():
            return {}
        problems = []
        for path in (self._path, self._backup):
            try:
                table = _decode(path.read_bytes())
            except (OSError, ValueError, RecursionError) as error:
                problems.append(f"{path}: {error}")
                continue
            if problems:
                structlog.get_logger().warning(
                    "kv_config_loaded_from_backup", path=str(path), problem=problems[0]
                )
            return table
        raise StartError(
            f"the key-value configuration cannot be read ({'; '.join(problems)}); "
            "restore the file, or move both away to start without it",
            str(self._path),
        )

    def _hold(self) -> None:
        lock = os.open(
            self._path.with_name(self._path.name + ".lock"), os.O_RDWR | os.O_CREAT, 0o644
        )
        if not files.lock(lock):
            os.close(lock)
            raise StartError(
                f"another name server uses {self._path}; give this one its own --data directory",
                "--data",
            )
        self._lock = lock


def _encode(table: Table) -> bytes:
    return checked_json.encode({"configTable": table})


def _decode(content: bytes) -> Table:
    """Return the table in a file's content. Raises ValueError with a description of the problem."""
    table = checked_json.decode(content).get("configTable")
    if not isinstance(table, dict):
        raise ValueError("no object configTable in it")
    for namespace, entries in table.items():
        if not isinstance(entries, dict) or not all(isinstance(v, str) for v in entries.values()):
            raise ValueError(f"namespace {namespace!r} is not a map of texts")
    return table
