"""The options of running brokers and name servers, and where their values come from."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from aerobee_cli.doctor.broker_group import absent_replicas, unregistered
from aerobee_client.admin.descriptions import ConfigOption
from aerobee_console.reading.source import Answer, Silent, Source
from aerobee_wire.status import Code, MqError


@dataclass(frozen=True, slots=True)
class Option:
    """An option of the replicas of a broker, or of the name servers.

    `values` has the value and the source of each process, by address.
    """

    key: str
    changeable: bool
    values: tuple[ConfigOption, ...]

    @property
    def is_same(self) -> bool:
        """True if all processes have the same value."""
        return len({each.value for each in self.values}) == 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration(Answer):
    """The options of a broker, or of the name servers if `broker_name` is None.

    `rows` is None if no process answered. `processes` are the addresses of those that answered.
    """

    broker_name: str | None
    processes: tuple[str, ...]
    rows: tuple[Option, ...] | None

    def option(self, key: str) -> Option | None:
        """Return the option with this key, whose case does not matter."""
        return next((row for row in self.rows or () if row.key.casefold() == key.casefold()), None)


async def configuration(
    source: Source, broker_name: str | None, *, key: str = "", changed: bool = False
) -> Configuration:
    """Return options, with one call to each process.

    Raises MqError with the code BROKER_NOT_EXIST if the broker is unknown.

    Args:
        source: The cluster.
        broker_name: The broker. None for the name servers.
        key: Only options whose key contains this text.
        changed: Only options that do not have their default.
    """
    asking, admin = await source.ask(), source.admin
    if broker_name in asking.cluster.away:
        return Configuration(
            broker_name=broker_name, processes=(), rows=None,
            silent=tuple(each for each in asking.silent if each.broker_name == broker_name),
            asked_at_ms=asking.at_ms,
        )  # fmt: skip
    silent: list[MqError] = []
    found: Sequence[ConfigOption] | None
    try:
        if broker_name is None:
            found = await admin.namesrv_config(silent=silent)
        else:
            found = await admin.broker_config(broker_name, silent=silent)
    except MqError as error:
        if error not in silent:
            raise
        found = None
    for each in silent:
        if each.code is Code.NO_PERMISSION:  # the process did answer
            raise each
    rows = None
    if found is not None:
        rows = tuple(
            row
            for row in _options(found)
            if key.casefold() in row.key.casefold()
            and (not changed or any(each.source != "default" for each in row.values))
        )
    missing = [] if broker_name is None else await unregistered_replicas(source, broker_name)
    return Configuration(
        broker_name=broker_name,
        processes=tuple(sorted({each.address for each in found or ()})),
        rows=rows,
        silent=(
            *(Silent(broker_name or each.broker_name, each.message) for each in silent),
            *(Silent(broker_name or "", text) for text in missing),
        ),
        asked_at_ms=asking.at_ms,
    )


async def unregistered_replicas(source: Source, broker_name: str) -> list[str]:
    """Return a sentence for each replica of a broker that is not registered any more."""
    registered = {each.broker_name: each.addresses for each in (await source.ask()).brokers}
    try:
        replicas = await source.admin.replicas(broker_name, silent=[])
    except MqError as error:
        return unregistered(broker_name, error)
    return unregistered(broker_name, absent_replicas(replicas, registered.get(broker_name, {})))


def _options(found: Iterable[ConfigOption]) -> list[Option]:
    by_key: dict[str, list[ConfigOption]] = {}
    for each in found:
        by_key.setdefault(each.key, []).append(each)
    return [
        Option(key, all(each.changeable for each in values), tuple(values))
        for key, values in by_key.items()
    ]
