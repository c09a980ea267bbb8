"""Check for topics and groups that differ between brokers, and for members that differ. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import pairwise
from typing import TYPE_CHECKING

from aerobee_cli.connected import conflict_texts
from aerobee_cli.doctor.finding import Finding

if TYPE_CHECKING:
    from aerobee_client.admin.descriptions import (
        Change,
        ClientDescription,
        GroupDescription,
        TopicDescription,
    )


def topics(listed: Iterable[TopicDescription], brokers: Collection[str]) -> Iterator[Finding]:
    """Report topics that differ between brokers or are missing on one.

    `brokers` are the answering ones that must have every topic; draining brokers need not.
    """
    from aerobee_client.admin.descriptions import differences

    for topic in listed:
        name = topic.topic
        lacking = sorted(set(brokers) - {there.broker_name for there in topic.brokers})
        if lacking:
            yield Finding(
                "topic",
                name,
                f"no queues on {', '.join(lacking)}",
                f"aerobee topic rebalance {name}",
            )
        changes = [
            change
            for one, other in pairwise(topic.brokers)
            for change in differences(name, other.broker_name, one, other)
            if change.setting not in ("broker_name", "address")
        ]
        if changes:
            yield Finding(
                "topic",
                name,
                f"its settings differ on {_texts(changes)}",
                f"aerobee topic update {name}",
            )
        for there in topic.brokers:
            if there.write_queue_count > there.read_queue_count:
                yield Finding(
                    "topic",
                    name,
                    f"no consumer reads queues {there.read_queue_count} to "
                    f"{there.write_queue_count - 1} on {there.broker_name}, which get messages",
                    f"aerobee topic update {name} --read-queues {there.write_queue_count}",
                )


def groups(of_brokers: Mapping[str, Iterable[GroupDescription]]) -> Iterator[Finding]:
    """Report groups that differ between brokers or are missing on one.

    `of_brokers`: broker name → its groups.
    """
    from aerobee_client.admin.descriptions import differences

    found: dict[str, dict[str, GroupDescription]] = {}
    for broker, listed in of_brokers.items():
        for group in listed:
            found.setdefault(group.consumer_group, {})[broker] = group
    for name, there in sorted(found.items()):
        lacking = sorted(of_brokers.keys() - there.keys())
        if lacking:
            yield Finding(
                "group",
                name,
                f"missing on {', '.join(lacking)}",
                f"aerobee group create {name}, with the settings that aerobee group show {name} "
                "has: where it exists nothing changes",
            )
        changes = [
            change
            for (_, one), (broker, other) in pairwise(sorted(there.items()))
            for change in differences(name, broker, one, other)
            if change.setting != "brokers"
        ]
        if changes:
            yield Finding(
                "group",
                name,
                f"its settings differ on {_texts(changes)}",
                f"aerobee group update {name}",
            )


def subscriptions(clients: Collection[ClientDescription]) -> Iterator[Finding]:
    """Report groups whose members contradict each other."""
    for group in sorted({group for client in clients for group in client.consumer_groups}):
        for problem in conflict_texts(clients, group):
            advice = "have all members consume alike, or give them groups of their own"
            yield Finding("group", group, problem, advice)


def _texts(changes: Iterable[Change]) -> str:
    return ", ".join(
        f"{change.broker_name} ({change.setting} {change.after}, elsewhere {change.before})"
        for change in changes
    )
