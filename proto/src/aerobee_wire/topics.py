"""Define topic and group names: their rules, system names, and names derived from a group.

Only this module writes `%RETRY%` and `%DLQ%`. Source: RocketMQ's TopicValidator and MixAll.
"""

from __future__ import annotations

import re

from aerobee_wire.status import invalid_parameter

RETRY_PREFIX = "%RETRY%"
DLQ_PREFIX = "%DLQ%"
SYSTEM_PREFIX = "rmq_sys_"
SYSTEM_GROUP_PREFIX = "CID_RMQ_SYS_"

AUTO_CREATE_TOPIC = "TBW102"
SELF_TEST_TOPIC = "SELF_TEST_TOPIC"
BENCHMARK_TOPIC = "BenchmarkTest"
OFFSET_MOVED_TOPIC = "OFFSET_MOVED_EVENT"
SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"
OP_HALF_TOPIC = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
CHECK_MAX_TIME_TOPIC = "TRANS_CHECK_MAX_TIME_TOPIC"
TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC"
TIMER_TOPIC = SYSTEM_PREFIX + "wheel_timer"
# Each topic has one queue. A record contains the progress of the delivery of delayed messages.
SCHEDULE_PROGRESS_TOPIC = SYSTEM_PREFIX + "SCHEDULE_PROGRESS"
TIMER_PROGRESS_TOPIC = SYSTEM_PREFIX + "TIMER_PROGRESS"
POP_JOURNAL_PREFIX = SYSTEM_PREFIX + "REVIVE_LOG_"
# The journal of topics, groups and consumer offsets, for a broker whose log has replicas.
METADATA_LOG_TOPIC = SYSTEM_PREFIX + "METADATA_LOG"
METADATA_CHANGE_QUEUE = 0
METADATA_DELETION_QUEUE = 1  # topic deletions; a replica applies one when it derives the record
# The journal of jobs over dead letters, from which the states of the letters are restored.
LETTER_JOURNAL_TOPIC = SYSTEM_PREFIX + "DEAD_LETTER_LOG"
LITE_JOURNAL_PREFIX = SYSTEM_PREFIX + "LITE_REVIVE_LOG_"

MAX_TOPIC_CHARACTERS = 127
MAX_DERIVED_TOPIC_CHARACTERS = 255  # %RETRY% and %DLQ% topics
MAX_GROUP_CHARACTERS = 120

SYSTEM_TOPICS = frozenset(
    {
        AUTO_CREATE_TOPIC,
        SELF_TEST_TOPIC,
        BENCHMARK_TOPIC,
        OFFSET_MOVED_TOPIC,
        SCHEDULE_TOPIC,
        HALF_TOPIC,
        OP_HALF_TOPIC,
        CHECK_MAX_TIME_TOPIC,
        TRACE_TOPIC,
    }
)

# Clients must not send to these.
SEND_REFUSED_TOPICS = frozenset(
    {
        SCHEDULE_TOPIC,
        HALF_TOPIC,
        OP_HALF_TOPIC,
        CHECK_MAX_TIME_TOPIC,
        SELF_TEST_TOPIC,
        OFFSET_MOVED_TOPIC,
    }
)

_LEGAL = re.compile(r"[%|a-zA-Z0-9_-]+", re.ASCII)


def retry_topic(consumer_group: str) -> str:
    return RETRY_PREFIX + consumer_group


def dead_letter_topic(consumer_group: str) -> str:
    return DLQ_PREFIX + consumer_group


def pop_journal_topic(cluster: str) -> str:
    """Return the topic in which the brokers of a cluster keep the journal of their leases."""
    return POP_JOURNAL_PREFIX + cluster


def lite_journal_topic(cluster: str) -> str:
    """Return the topic in which the brokers of a cluster journal the leases of lite topics."""
    return LITE_JOURNAL_PREFIX + cluster


def is_retry(topic: str) -> bool:
    return topic.startswith(RETRY_PREFIX)


def is_dead_letter(topic: str) -> bool:
    return topic.startswith(DLQ_PREFIX)


def is_system(topic: str) -> bool:
    return topic in SYSTEM_TOPICS or topic.startswith(SYSTEM_PREFIX)


def is_system_group(consumer_group: str) -> bool:
    return consumer_group.startswith(SYSTEM_GROUP_PREFIX)


def group_of(topic: str) -> str | None:
    """Return the consumer group of a retry or dead-letter topic, or None for other topics."""
    if topic[:1] != "%":  # almost each topic of a list
        return None
    for prefix in (RETRY_PREFIX, DLQ_PREFIX):
        if topic.startswith(prefix):
            return topic[len(prefix) :]
    return None


def check_topic(topic: str) -> None:
    """Check a topic name.

    Raises MqError with the code INVALID_PARAMETER, which names the violated rule.
    """
    limit = MAX_DERIVED_TOPIC_CHARACTERS if group_of(topic) is not None else MAX_TOPIC_CHARACTERS
    _check("topic", topic, limit)


def check_group(group: str) -> None:
    """Check a group name.

    Raises MqError with the code INVALID_PARAMETER, which names the violated rule.
    """
    _check("group", group, MAX_GROUP_CHARACTERS)


def _check(kind: str, name: str, limit: int) -> None:
    problem = None
    if not name.strip():
        problem = "is blank"
    elif len(name) > limit:
        problem = f"{name[:32]!r}… has {len(name)} characters: use at most {limit}"
    elif not _LEGAL.fullmatch(name):
        problem = f"{name!r} is illegal"
    if problem:
        rule = f"the {kind} name {problem}; it is made of letters, digits, _ - % |"
        raise invalid_parameter(rule, about=kind)
