"""Properties over arrays against decoding one string at a time."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from aerobee_broker.store.derived.index import key_hash
from aerobee_broker.store.derived.keys import Keys, Properties, is_regular
from aerobee_broker.store.derived.topic_encoding import TopicEncoding
from aerobee_wire import properties
from aerobee_wire.tags import tags_code
from support.repository.tree import ROOT

NAMES = st.sampled_from(["TAGS", "KEYS", "UNIQ_KEY", "TAG", "TAGS2", "MYKEYS", "x"])
VALUES = st.text(
    alphabet=st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]), max_size=12
) | st.sampled_from(["a b", " a", "a ", "  ", "a  b c"])
MAPS = st.dictionaries(NAMES, VALUES, max_size=5)


def wanted_keys(named: dict[str, str]) -> list[str]:
    unique = [named["UNIQ_KEY"]] if named.get("UNIQ_KEY") else []
    return unique + [key for key in named.get("KEYS", "").split(" ") if key]


@given(st.lists(MAPS, min_size=1, max_size=12))
def test_keys_are_those_of_each_message_in_order(messages: list[dict[str, str]]) -> None:
    topics = [TopicEncoding(name, None) for name in ("orders", "größe")]
    rows = [
        (topics[at % 2], properties.encode(named), at * 100, at)
        for at, named in enumerate(messages)
    ]
    expected = [
        (key_hash(topics[at % 2].name, key), at * 100, at)
        for at, named in enumerate(messages)
        for key in wanted_keys(named)
    ]
    keys = Keys.of(rows)
    columns = np.stack((keys.hashes, keys.physical_offsets, keys.stored_ms), axis=1)
    assert [tuple(row) for row in columns.tolist()] == expected


@given(st.lists(MAPS, min_size=1, max_size=12))
def test_tags_codes_are_those_of_each_message(messages: list[dict[str, str]]) -> None:
    found = Properties.of([properties.encode(named) for named in messages])
    codes = found.tags_codes(len(messages)).tolist()
    assert codes == [tags_code(named.get("TAGS")) for named in messages]


@given(st.lists(st.binary(max_size=30), min_size=1, max_size=8))
def test_irregular_strings_do_not_disturb_the_others(strings: list[bytes]) -> None:
    rows = [*strings, b"TAGS\x01red\x02"]
    codes = Properties.of(rows).tags_codes(len(rows)).tolist()
    assert codes[-1] == tags_code("red")
    for string, code in zip(strings, codes, strict=False):
        if not is_regular(string):
            tags = properties.get(string, b"TAGS\x01") or b""
            assert code == tags_code(tags.decode("utf-8", "replace"))


@given(st.binary(max_size=30))
def test_regular_means_that_names_and_values_alternate(data: bytes) -> None:
    marks = [byte for byte in data if byte in (1, 2)]
    alternate = marks == [1, 2] * (len(marks) // 2) and len(marks) % 2 == 0
    assert is_regular(data) == (alternate and (not data or data[-1] == 2))
    assert Properties(data, np.array([len(data)])).regular == is_regular(data)


def test_first_of_two_values_counts() -> None:
    found = Properties.of([b"TAGS\x01a\x02TAGS\x01b\x02", b"TAGS\x01\x02TAGS\x01b\x02"])
    assert found.tags_codes(2).tolist() == [tags_code("a"), 0]
    assert properties.get(b"TAGS\x01a\x02TAGS\x01b\x02", b"TAGS\x01") == b"a"
    assert properties.get(b"TAGS\x01\x02TAGS\x01b\x02", b"TAGS\x01") is None


def test_keys_can_be_added_and_dropped() -> None:
    topic = TopicEncoding("t", None)
    keys = Keys.of([(topic, b"KEYS\x01a b\x02", 1, 1)])
    keys.add(Keys.of([(topic, b"UNIQ_KEY\x01c\x02", 2, 2)]))
    keys.drop(1)
    assert keys.physical_offsets.tolist() == [1, 2]
    assert keys.hashes.tolist() == [key_hash("t", "b"), key_hash("t", "c")]


WITHOUT_MASKED_ARRAYS = """
import dataclasses, random, sys
from pathlib import Path
from bench.store import BATCH, fill, messages, opened, put

path = Path(sys.argv[1])
store = opened(path, 1 << 20)
fill(store, 1 << 20, keyed=True)
string = b"KEYS\\x01a\\x02KEYS\\x01b\\x02"  # one property twice
batch = messages(2, random.Random(1))
put(store, [dataclasses.replace(each, properties=string) for each in batch])
store.close()
(path / "checkpoint").unlink()
(path / "abort").touch()
opened(path, 1 << 20).close()
print("numpy" in sys.modules, "numpy.ma" in sys.modules)
"""


def test_the_store_does_not_import_masked_arrays_at_work(tmp_path: Path) -> None:
    """Numpy imports them at their first use, which would be on the event loop."""
    command = [sys.executable, "-c", WITHOUT_MASKED_ARRAYS, str(tmp_path / "store")]
    environment = os.environ | {"PYTHONPATH": str(ROOT / "tests")}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "True False\n"), done.stderr
