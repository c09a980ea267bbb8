"""Create a topic and groups for a run on each broker of a cluster, and delete them afterwards."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from aerobee_wire.status import MqError
from aerobee_wire.topics import retry_topic

if TYPE_CHECKING:
    from aerobee_client import AsyncAdminClient

# The names of all topics and groups of benchmarks begin with this.
PREFIX = "aerobee-bench-"


@dataclass(slots=True)
class Scratch:
    """A topic and groups of one run.

    `brokers` have the topic. `problems` has the reason for each other broker of the cluster. `left`
    has an error for each topic or group that could not be deleted everywhere.
    """

    topic: str
    groups: Sequence[str]
    brokers: list[str] = field(default_factory=list)
    problems: dict[str, str] = field(default_factory=dict)
    left: list[str] = field(default_factory=list)


def new_scratch(groups: int) -> Scratch:
    """Return names that no other run has."""
    topic = PREFIX + secrets.token_hex(6)
    return Scratch(topic, [f"{topic}-{number}" for number in range(1, groups + 1)])


@asynccontextmanager
async def created(admin: AsyncAdminClient, scratch: Scratch, queues: int) -> AsyncIterator[None]:
    """Create the topic and the groups on each broker that answers and does not drain.

    Delete them at the end.

    Raises MqError if no name server answers.
    """
    cluster = await admin.cluster()
    names = sorted({broker.broker_name for broker in cluster.brokers})
    scratch.problems |= {name: _AWAY for name in cluster.away if name not in names}
    try:
        await asyncio.gather(*(_create_at(admin, scratch, name, queues) for name in names))
        yield
    finally:
        # A cancellation must not leave the topic behind.
        await asyncio.shield(_clean_up(admin, scratch))


_AWAY = "it is not registered any more: start it again, or drain a broker before you remove it"


async def _create_at(admin: AsyncAdminClient, scratch: Scratch, broker: str, queues: int) -> None:
    try:
        if (await admin.broker_status(broker)).draining_since_ms:
            scratch.problems[broker] = f"it drains: aerobee broker drain {broker} --undo ends this"
            return
        made = await admin.create_topic(scratch.topic, queues=queues, broker=broker)
        for group in scratch.groups:
            await admin.create_group(group, broker=broker)
    except MqError as error:
        scratch.problems[broker] = error.message
        return
    scratch.brokers.append(broker)
    unreachable = {address for each in made for address in each.unreachable_namesrvs}
    if unreachable:
        addresses = ", ".join(sorted(unreachable))
        scratch.problems[broker] = f"it could not register the topic at {addresses}"


async def _clean_up(admin: AsyncAdminClient, scratch: Scratch) -> None:
    """Delete the topic and the groups. Brokers that never had them may be unreachable."""
    had = set(scratch.brokers)
    for name, error in await delete(admin, [scratch.topic], scratch.groups):
        if had and error.broker_name in ("", *had):
            scratch.left.append(f"{name}: {error.message}")


async def delete(
    admin: AsyncAdminClient, topics: Sequence[str], groups: Sequence[str]
) -> list[tuple[str, MqError]]:
    """Delete topics, groups and the retry topics of the groups.

    Returns the names of those that could not be deleted everywhere, with the errors.
    """
    calls: list[tuple[str, Callable[..., Coroutine[Any, Any, bool]]]] = [
        *((group, admin.delete_group) for group in groups),
        *((topic, admin.delete_topic) for topic in (*topics, *map(retry_topic, groups))),
    ]
    failed: list[tuple[str, MqError]] = []
    for name, call in calls:
        silent: list[MqError] = []
        try:
            await call(name, silent=silent)
        except MqError as error:
            if error not in silent:
                silent.append(error)
        failed += [(name, error) for error in silent]
    return failed


async def leftovers(admin: AsyncAdminClient) -> tuple[list[str], list[str]]:
    """Return the topics and groups of all runs, also of running ones."""
    listed = await admin.list_topics()
    topics = [each.topic for each in listed if each.topic.startswith(PREFIX)]
    groups = [
        each.consumer_group
        for each in await admin.list_groups()
        if each.consumer_group.startswith(PREFIX)
    ]
    return topics, groups
