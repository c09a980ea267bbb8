"""Build summary.json, which has the figures of a report under stable names.

docs/spark.md describes every key. A figure is null, not 0, if the report did not read its messages.
The only file that this module reads is the previous summary (`PreviousReport`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aerobee_spark.errors import ReportError
from aerobee_spark.reading.offsets import Queue
from aerobee_spark.reading.options import redacted_names
from aerobee_spark.report.data.coverage import Coverage, kind_of
from aerobee_spark.report.data.figures import Figures, Row
from aerobee_spark.report.data.forecast import Forecast
from aerobee_spark.report.data.states import as_columns
from aerobee_spark.report.formats import encodable, iso
from aerobee_spark.report.request import DLQ, RETRY, ReportRequest
from aerobee_wire import properties as props
from aerobee_wire.compression import decompress_start
from aerobee_wire.record import COMPRESSED
from aerobee_wire.status import MqError

SCHEMA_VERSION = 1
Summary = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Earlier:
    """The time of the previous report in the folder, and the offsets up to which it read."""

    generated_at: str
    # (broker name, queue id) of the dead-letter topic → end offset
    read_to: Mapping[tuple[str, int], int]


def check_extra(extra: Mapping[str, Any]) -> None:
    """Raise ReportError if a figure of --extra-json has the name of a key of the summary."""
    taken = sorted(set(extra) & KEYS)
    if taken:
        raise ReportError(
            f"--extra-json must not set {', '.join(taken)}: the report computes it; use "
            "another name",
            ", ".join(taken),
        )


def build(
    request: ReportRequest,
    coverage: Coverage,
    figures: Figures,
    *,
    engine: str,
    forecast: Forecast,
    now_ms: int,
    bucket_ms: int,
    earlier: Earlier | None,
) -> Summary:
    """Build the content of summary.json.

    Args:
        request: the request for the report.
        coverage: the planned and the read messages of each queue.
        figures: the computed figures.
        engine: name of the engine that computed them.
        forecast: the retry settings of the group, the trend, and the expiry of dead letters.
        now_ms: time of the report, in milliseconds since the epoch.
        bucket_ms: width of a bucket of the timeline, in milliseconds.
        earlier: the previous report in the folder; None if there is none.
    """
    summary = {
        "schema_version": SCHEMA_VERSION,
        "group": request.consumer_group,
        "kinds": list(request.kinds),
        "generated_at": iso(now_ms),
        "generated_timestamp_ms": now_ms,
        "engine": engine,
        "redacted": list(redacted_names(request.redact)),
        "complete": coverage.complete,
        "problems": coverage.problems,
        "window": {"since": iso(request.since_ms), "until": iso(request.until_ms)},
        "rows": coverage.rows,
        "rows_expected": coverage.expected,
        "queues": [each.as_json() for each in coverage.queues],
        **_dead_letters(request, figures, now_ms),
        **_new(request, coverage, earlier),
        **forecast.as_json(),
        "retries": _retries(request, figures),
        "timeline": _timeline(request, figures, bucket_ms),
        "number_of_poison_keys": next((row["poison_keys"] for row in figures.poison_keys), 0),
        "poison_keys": [_poison_key(row) for row in figures.poison_keys],
        "samples": [_sample(row) for row in figures.samples],
        "redrive": {"file": "redrive.jsonl", "dead_letters": figures.total(DLQ).get("messages", 0)},
    }
    complete: Summary = encodable({**summary, **request.extra})
    return complete


def _dead_letters(request: ReportRequest, figures: Figures, now_ms: int) -> Summary:
    asked = DLQ in request.kinds
    total = figures.total(DLQ)
    quantiles = total.get("quantiles") or (None, None)

    def by(dimension: str, column: str) -> dict[str, int] | None:
        rows = figures.of(dimension, DLQ)
        return _counts(rows, column) if asked else None

    return {
        "dead_letters": total.get("messages", 0) if asked else None,
        # Set when the letters are listed.
        "dead_letters_by_state": None,
        "states_unknown": None,
        "number_of_clusters": None,
        "clusters": [],
        "dead_letters_by_tag": by("tag", "tags"),
        "dead_letters_by_reason": by("reason", "reason"),
        "dead_letters_by_origin_topic": by("origin_topic", "originTopic"),
        "dead_letters_by_producer": by("producer", "producerHost"),
        "dead_letters_by_reason_and_tag": [
            {
                "reason": row["reason"] or "",
                "tag": row["tags"] or "",
                "dead_letters": row["messages"],
                "first": iso(row["first_ms"]),
                "last": iso(row["last_ms"]),
            }
            for row in figures.of("reason_and_tag", DLQ)
        ],
        "reconsume_times": by("reconsume_times", "reconsumeTimes"),
        "dead_letter_body_bytes": total.get("body_bytes", 0) if asked else None,
        "dead_messages": figures.messages.get("dead", 0) if asked else None,
        "dead_lettered_again": figures.messages.get("dead_again", 0) if asked else None,
        "dead_lettered_after_redrive": (
            sum(row["messages"] for row in figures.redriven) if asked else None
        ),
        "dead_letters_by_redrive_times": _counts(figures.redriven, "times") if asked else None,
        "time_to_dead_letter_ms": {
            "p50": quantiles[0],
            "p95": quantiles[1],
            "max": total.get("longest_ms"),
        },
        "oldest_dead_letter": _moment(total.get("first_ms"), now_ms),
        "newest_dead_letter": _moment(total.get("last_ms"), now_ms),
    }


def _counts(rows: Sequence[Row], column: str) -> dict[str, int]:
    """Return the number of messages for each value of a column, those with most messages first.

    Messages without a value are counted under "".
    """
    counts: dict[str, int] = {}
    for row in rows:
        value = "" if row[column] is None else str(row[column])
        counts[value] = counts.get(value, 0) + row["messages"]
    return counts


def _moment(ms: int | None, now_ms: int) -> Summary | None:
    if ms is None:
        return None
    return {"stored_at": iso(ms), "store_timestamp_ms": ms, "age_ms": max(now_ms - ms, 0)}


def _new(request: ReportRequest, coverage: Coverage, earlier: Earlier | None) -> Summary:
    """Count the dead letters that the previous report did not read.

    Without a previous report, all dead letters are new.
    """
    if DLQ not in request.kinds:
        return {"new_dead_letters": None, "new_since": None}
    new = 0
    read_to = new_from(coverage, earlier)
    for covered in coverage.queues:
        if covered.wanted is None or kind_of(covered.queue.topic) != DLQ:
            continue
        first = read_to.get(covered.queue[1:], 0)
        new += max(covered.wanted.end - max(covered.wanted.start, first), 0)
    return {"new_dead_letters": new, "new_since": earlier.generated_at if earlier else None}


def new_from(coverage: Coverage, earlier: Earlier | None) -> dict[tuple[str, int], int]:
    """Return the first offset that the previous report did not read, by (broker name, queue id).

    If a queue ends before the offset up to which the previous report read, the queue was purged,
    and all its dead letters are new.
    """
    found = dict(earlier.read_to) if earlier else {}
    for covered in coverage.queues:
        queue = covered.queue[1:]
        is_purged = covered.bounds is not None and covered.bounds.max_offset < found.get(queue, 0)
        if is_purged and kind_of(covered.queue.topic) == DLQ:
            found[queue] = 0
    return found


def _retries(request: ReportRequest, figures: Figures) -> Summary | None:
    """Summarize the retry topic, which has one record for each retry."""
    if RETRY not in request.kinds:
        return None
    total = figures.total(RETRY)
    return {
        "records": total.get("messages", 0),
        "messages": _retried(request, figures),
        # This is null if the report did not read the dead-letter topic.
        "messages_dead_lettered": (
            figures.messages.get("retried_and_dead", 0) if DLQ in request.kinds else None
        ),
        "records_by_tag": _counts(figures.of("tag", RETRY), "tags"),
        "records_by_reason": _counts(figures.of("reason", RETRY), "reason"),
        "records_by_reconsume_times": _counts(
            figures.of("reconsume_times", RETRY), "reconsumeTimes"
        ),
        "newest": iso(total.get("last_ms")),
    }


def _retried(request: ReportRequest, figures: Figures) -> int | None:
    """Return the number of messages that were retried, or None if it is unknown.

    A message that is leased is redelivered in place, without a record in the retry topic. If the
    retry topic is empty and dead letters have several attempts, the group leases its messages.
    """
    count: int = figures.messages.get("retried", 0)
    attempts = figures.of("reconsume_times", DLQ) if DLQ in request.kinds else ()
    in_place = any((row["reconsumeTimes"] or 0) > 1 for row in attempts)
    return None if in_place and not figures.total(RETRY).get("messages", 0) else count


def _timeline(request: ReportRequest, figures: Figures, bucket_ms: int) -> Summary:
    """Return the numbers of dead letters and retries by store time, without empty buckets."""
    buckets: dict[int, Summary] = {}
    names = {DLQ: "dead_letters", RETRY: "retries"}
    for kind in request.kinds:
        for row in figures.of("bucket", kind):
            start = row["bucket"]
            if start is None:  # the store time is outside the years 1 to 9999
                continue
            empty = {"start": iso(start), "start_ms": start, "dead_letters": 0, "retries": 0}
            buckets.setdefault(start, empty)[names[kind]] = row["messages"]
    return {"bucket_ms": bucket_ms, "buckets": [buckets[start] for start in sorted(buckets)]}


def _poison_key(row: Row) -> Summary:
    names = (
        *("key", "messages", "dead_letters"),
        *("tags", "reasons", "number_of_tags", "number_of_reasons"),
    )
    return {
        **{name: row[name] for name in names},
        "first": iso(row["first_ms"]),
        "last": iso(row["last_ms"]),
    }


def _sample(row: Row) -> Summary:
    text, kind = preview(row["body"], row["sys_flag"], whole_size=row["body_size"])
    properties = row["properties"] or {}
    return {
        **{name: value for name, value in row.items() if name not in ("body", "sys_flag")},
        "lite_topic": properties.get(props.LITE_TOPIC, ""),
        **as_columns(None),  # set when the letters are listed
        "born_at": iso(row["born_at"]),
        "stored_at": iso(row["stored_at"]),
        # Include only the user's properties. Properties of the protocol are columns or internal.
        "properties": {k: v for k, v in properties.items() if k not in props.RESERVED},
        "body_kind": kind,
        "body": text,
    }


# The keys of every summary. They are taken from the summary of an empty report.
KEYS = frozenset(
    build(
        ReportRequest("", "", Path()),
        Coverage(()),
        Figures(),
        engine="",
        forecast=Forecast(),
        now_ms=0,
        bucket_ms=1,
        earlier=None,
    )
)


@dataclass(frozen=True, slots=True)
class PreviousReport:
    """The previous report in the folder, for comparison with the new report.

    `summary` is empty if the folder has no previous report that can be compared.
    """

    summary: Mapping[str, Any]

    @classmethod
    def read(cls, path: Path, consumer_group: str) -> PreviousReport:
        """Read the summary of the previous report.

        Ignore it if it cannot be read, or belongs to another group or version.
        """
        try:
            loaded = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return cls({})
        if not isinstance(loaded, dict) or loaded.get("schema_version") != SCHEMA_VERSION:
            return cls({})
        return cls(loaded if loaded.get("group") == consumer_group else {})

    def queues(self, kinds: Sequence[str]) -> frozenset[Queue]:
        return frozenset(
            Queue(queue["topic"], queue["broker_name"], queue["queue_id"])
            for queue in self.summary.get("queues", ())
            if queue["kind"] in kinds
        )

    @property
    def earlier(self) -> Earlier | None:
        """Return the time of the previous report and the offsets up to which it read dead letters.

        Return None if it did not read dead letters.
        """
        if DLQ not in self.summary.get("kinds", ()):
            return None
        read_to = {
            (queue["broker_name"], queue["queue_id"]): queue["end_offset"]
            for queue in self.summary["queues"]
            if queue["kind"] == DLQ and queue["end_offset"] is not None
        }
        return Earlier(self.summary["generated_at"], read_to)


# ---- previews of bodies ----
#
# Make a preview of a message body: indented JSON, text, or hex for other bytes.


# Control characters that text does not contain. All other characters can be text: a no-break space,
# a zero-width joiner and a byte order mark are not printable for Python, but are frequent in text.
_BINARY = re.compile(r"[\x00-\x08\x0b\x0e-\x1f\x7f-\x9f]")
MOST_TEXT = 2048
MOST_HEX_BYTES = 256


def preview(body: bytes | None, sys_flag: int, *, whole_size: int) -> tuple[str | None, str]:
    """Return a text that shows the first bytes of a body, and the kind of the body.

    The kind is json, text, hex, empty or omitted. Only the first bytes of a compressed body are
    decompressed. A text that is cut ends in "…".

    Args:
        body: the first bytes of the body; None if bodies are excluded from the report.
        sys_flag: sys flag of the message, which names the compression.
        whole_size: size of the whole stored body, in bytes.
    """
    if body is None:
        return None, "omitted"
    cut = len(body) < whole_size
    if sys_flag & COMPRESSED:
        body, cut = _unpacked(body, sys_flag, cut)
    if not body:
        return "", "empty"
    text = _text(body, cut)
    if text is None:
        return _shortened(body[:MOST_HEX_BYTES].hex(" "), cut or len(body) > MOST_HEX_BYTES), "hex"
    if not cut and (pretty := _json(text)) is not None:
        return _shortened(pretty[:MOST_TEXT], len(pretty) > MOST_TEXT), "json"
    return _shortened(text[:MOST_TEXT], cut or len(text) > MOST_TEXT), "text"


def _unpacked(body: bytes, sys_flag: int, cut: bool) -> tuple[bytes, bool]:
    """Return (the first decompressed bytes of a body, whether more bytes follow).

    If the body cannot be decompressed, return its stored bytes and `cut`.
    """
    try:
        start, is_whole = decompress_start(body, sys_flag, MOST_TEXT * 4)
    except MqError:
        return body, cut
    if not start:  # cut within its first block
        return body, cut
    return start, not is_whole


def _text(body: bytes, cut: bool) -> str | None:
    """Decode a body as UTF-8. Return None if it is not UTF-8 or has control characters."""
    try:
        text = str(body, "utf-8")
    except UnicodeDecodeError as error:
        if not cut or error.start < len(body) - 3:
            return None
        text = str(body[: error.start], "utf-8")  # the body is cut inside a character
    return None if _BINARY.search(text) else text


def _json(text: str) -> str | None:
    """Indent a JSON object or list.

    Return None for any other text, even a JSON number, and for JSON that is nested too deeply.
    """
    text = text.removeprefix("\ufeff")  # a byte order mark, which JSON does not permit
    if not text.lstrip().startswith(("{", "[")):
        return None
    try:
        pretty: str = encodable(json.dumps(json.loads(text), indent=2, ensure_ascii=False))
    except (ValueError, RecursionError):
        return None
    return pretty


def _shortened(text: str, cut: bool) -> str:
    return f"{text}…" if cut else text
