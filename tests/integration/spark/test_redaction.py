"""`report --redact`: no value is left in any file, and keys stay comparable."""

from __future__ import annotations

import json
import re
import zlib
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from aerobee_spark.errors import OptionError
from aerobee_spark.reading.options import ReadOptions
from aerobee_spark.report import job
from aerobee_spark.report.engines import from_table, local_facts
from aerobee_spark.report.request import LOCAL, ReportRequest
from aerobee_wire import topics
from aerobee_wire.record import COMPRESSED
from support.client.fake_broker import FakeCluster
from support.codes import raises_about

GROUP = "mails"
DEAD = topics.dead_letter_topic(GROUP)
SECRETS = ("anna@example.org", "order-77", "tenant-9")


def fill(cluster: FakeCluster) -> None:
    for number in range(6):
        body = json.dumps({"to": {"email": SECRETS[0]}, "n": number}).encode()
        flag = 0
        if number % 2:
            body, flag = zlib.compress(body), COMPRESSED
        if number == 5:  # damaged
            body = body[:-6]
        named = {"KEYS": f"{SECRETS[1]} k{number}", "TAGS": "UA", "tenant": SECRETS[2]}
        named |= {"DLQ_REASON": "ValueError", "DLQ_REASON_DESCRIPTION": f"no mail to {SECRETS[0]}"}
        named["__SHARDINGKEY"] = SECRETS[1]
        cluster["broker-a"].put(DEAD, body, named=named | {"UNIQ_KEY": f"U{number}"}, sys_flag=flag)


def report(cluster: FakeCluster, out: Path, *names: str) -> dict[str, Any]:
    request = ReportRequest(cluster.namesrv, GROUP, out, redact=names, engine=LOCAL)
    return job.run(request, lambda step: None)


def test_no_file_has_a_value_and_keys_stay_comparable(cluster: FakeCluster, tmp_path: Path) -> None:
    fill(cluster)
    summary = report(cluster, tmp_path, "KEYS", "email", "tenant")
    (poison,) = summary["poison_keys"]
    assert (poison["messages"], poison["key"][0], len(poison["key"])) == (6, "~", 13)
    implied = ["DLQ_REASON_DESCRIPTION", "DLQ_CAUSE", "DLQ_STACK_TRACE", "__SHARDINGKEY"]
    assert summary["redacted"] == ["KEYS", "email", "tenant", *implied]
    assert summary["dead_letters_by_reason"] == {"ValueError": 6}
    assert summary["dead_letters_by_tag"] == {"UA": 6}
    facts = pq.read_table(tmp_path / "facts")
    texts = [str(facts.to_pylist())]
    texts += [
        path.read_text("utf-8")
        for path in tmp_path.rglob("*")
        if path.is_file() and path.suffix in (".csv", ".json", ".jsonl", ".html")
    ]
    assert len(texts) > 5
    for secret in SECRETS:
        assert not [text for text in texts if secret in text], secret
    bodies = facts.column("body").to_pylist()
    assert [json.loads(body)["n"] for body in bodies[:5]] == [0, 1, 2, 3, 4]
    assert len({json.loads(body)["to"]["email"] for body in bodies[:5]}) == 1
    assert bodies[5].startswith(b"~")
    assert "redacted: KEYS, email, tenant, DLQ_REASON_DESCRIPTION" in (
        tmp_path / "report.html"
    ).read_text("utf-8")


def test_a_name_after_a_minus_is_kept(cluster: FakeCluster, tmp_path: Path) -> None:
    fill(cluster)
    summary = report(cluster, tmp_path, "email", "-DLQ_REASON_DESCRIPTION")
    assert summary["redacted"] == ["email", "DLQ_CAUSE", "DLQ_STACK_TRACE"]
    assert summary["samples"][0]["description"] == f"no mail to {SECRETS[0]}"


def test_redacted_letters_of_one_cause_are_one_cluster(
    cluster: FakeCluster, tmp_path: Path
) -> None:
    for number in range(12):
        text = f"order {number} of {SECRETS[0]} is late" if number % 3 else f"no order {number}"
        named = {"DLQ_REASON": "ValueError", "DLQ_REASON_DESCRIPTION": text}
        cluster["broker-a"].put(DEAD, b"{}", named=named | {"UNIQ_KEY": f"U{number}"})
    plain = report(cluster, tmp_path / "plain")["clusters"]
    found = report(cluster, tmp_path / "redacted", "email")["clusters"]
    assert [each["dead_letters"] for each in found] == [8, 4]
    assert [each["dead_letters"] for each in plain] == [8, 4]
    assert all(re.fullmatch("~[0-9a-f]{12}", each["text"]) for each in found)


def test_ids_and_tags_may_be_redacted_and_hashes_agree_between_reports(
    cluster: FakeCluster, tmp_path: Path
) -> None:
    fill(cluster)
    first = report(cluster, tmp_path / "one", "TAGS", "UNIQ_KEY", "KEYS")
    second = report(cluster, tmp_path / "two", "KEYS")
    (tag,) = first["dead_letters_by_tag"]
    assert tag.startswith("~") and first["dead_letters_by_tag"][tag] == 6
    assert all(sample["message_id"].startswith("~") for sample in first["samples"])
    assert first["dead_messages"] == second["dead_messages"] == 6
    assert first["poison_keys"][0]["key"] == second["poison_keys"][0]["key"]


def test_rows_of_a_facts_table_are_redacted_with_what_repeats_them(
    cluster: FakeCluster, tmp_path: Path
) -> None:
    fill(cluster)
    cluster["broker-a"].put(DEAD, b"{}", named={"DLQ_REASON": SECRETS[0], "RETRY_TOPIC": "t"})
    report(cluster, tmp_path)
    table = pq.read_table(tmp_path / "facts").combine_chunks()
    (rows,) = table.cast(local_facts.SCHEMA).to_batches()
    request = ReportRequest("", GROUP, tmp_path, redact=("DLQ_REASON", "email", "tenant", "KEYS"))
    found = from_table.redacted_rows(request, rows)
    assert found.schema == rows.schema and found.num_rows == 7
    text = str(found.to_pylist())
    assert not [secret for secret in SECRETS if secret in text]
    assert found.column("reason").to_pylist()[6].startswith("~")
    assert found.column("originTopic").to_pylist()[6] == "t"
    assert from_table.redacted_rows(ReportRequest("", GROUP, tmp_path), rows) is rows


@pytest.mark.parametrize("other", [{"maxBodyBytes": "5"}, {"bodyEncoding": "stored"}])
def test_cut_and_compressed_bodies_cannot_be_redacted(other: dict[str, str]) -> None:
    with raises_about(OptionError, "redact"):
        ReadOptions.parse({"nameServer": "h:1", "topic": "t", "redact": "email"} | other)
