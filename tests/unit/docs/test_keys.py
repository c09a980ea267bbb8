"""The tables of RocketMQ's keys and attributes: each has a place, and the page has them all."""

from __future__ import annotations

import pytest

from aerobee_broker.config import BrokerOptions
from aerobee_broker.registry.groups import GROUP_ATTRIBUTES
from aerobee_broker.registry.topics import TOPIC_ATTRIBUTES
from aerobee_chassis.config import Options
from aerobee_namesrv.config import NamesrvOptions
from aerobee_proxy.config import ProxyOptions
from support.repository.tree import docs_script

MODELS = [BrokerOptions, ProxyOptions, NamesrvOptions]


def test_the_page_has_the_tables_of_the_code() -> None:
    keys = docs_script("keys")
    page = keys.PAGE.read_text(encoding="utf-8")
    assert keys.rewritten(page) == page, "run docs/keys.py"
    with pytest.raises(SystemExit):
        keys.rewritten("no marks")


@pytest.mark.parametrize("model", MODELS)
def test_each_key_of_rocketmq_has_a_reason(model: type[Options]) -> None:
    known = model.known_keys
    assert all(known.harmless.values())
    assert all(promise.instead for promise in known.promises.values())
    assert set(known.renamed.values()) <= set(model.keys_shown())


@pytest.mark.parametrize("model", MODELS)
def test_the_page_has_each_key_that_may_change_at_run_time(model: type[Options]) -> None:
    page = docs_script("keys").PAGE.read_text(encoding="utf-8")
    _, _, section = page.partition("## Change options at run time")
    section, _, _ = section.partition("\n## ")
    for key in model.runtime_keys:
        assert f"`{key}`" in section, key


def test_the_page_has_each_attribute() -> None:
    page = docs_script("keys").PAGE.read_text(encoding="utf-8")
    rows = [line for line in page.splitlines() if line.startswith("|")]
    for name in TOPIC_ATTRIBUTES | GROUP_ATTRIBUTES:
        assert any(f"`{name}`" in row.split("|")[1] for row in rows), name
