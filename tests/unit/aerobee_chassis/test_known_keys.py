"""The table of RocketMQ's keys that are no options of a service."""

from __future__ import annotations

from pathlib import Path

import pytest

from aerobee_chassis.known_keys import KnownKeys

TABLE = """
harmless = '''
brokerIP2
traceTopicEnable
'''

[renamed]
haSlaveFallbehindMax = "haMaxGapNotInSync"

[[refused]]
keys = "aclEnable tiered*"
kept = ["", "false"]
instead = '''
remove
the key'''
"""


@pytest.fixture
def keys(tmp_path: Path) -> KnownKeys:
    path = tmp_path / "keys.toml"
    path.write_text(TABLE)
    return KnownKeys.read(path)


def test_table_has_harmless_refused_and_renamed_keys(keys: KnownKeys) -> None:
    assert keys.harmless == {"brokerIP2", "traceTopicEnable"}
    assert keys.renamed == {"haSlaveFallbehindMax": "haMaxGapNotInSync"}
    assert sorted(keys) == [
        *("aclEnable", "brokerIP2", "haSlaveFallbehindMax", "tiered*", "traceTopicEnable"),
    ]


@pytest.mark.parametrize("key", ["aclEnable", "tieredStoreFilePath", "TieredStoreFilePath"])
def test_refused_key_says_which_values_are_taken_and_what_to_do(keys: KnownKeys, key: str) -> None:
    assert keys.promise(key) == (frozenset({"", "false"}), "remove the key")


@pytest.mark.parametrize("key", ["brokerIP2", "haSlaveFallbehindMax", "listenPort"])
def test_other_keys_promise_nothing(keys: KnownKeys, key: str) -> None:
    assert keys.promise(key) is None
