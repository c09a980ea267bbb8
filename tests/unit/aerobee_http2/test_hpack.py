"""Header blocks: the examples of RFC 7541, and what no block may do."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from aerobee_http2 import hpack
from aerobee_http2.hpack import (
    STATIC,
    Decoder,
    HeadersTooLarge,
    MalformedBlock,
    decode,
    encoded,
)

# RFC 7541, C.2 to C.6: those that use no entry of a dynamic table
EXAMPLES = {
    "C.2.1": ("400a637573746f6d2d6b65790d637573746f6d2d686561646572",
              [("custom-key", "custom-header")]),
    "C.2.2": ("040c2f73616d706c652f70617468", [(":path", "/sample/path")]),
    "C.2.3": ("100870617373776f726406736563726574", [("password", "secret")]),
    "C.2.4": ("82", [(":method", "GET")]),
    "C.3.1": ("828684410f7777772e6578616d706c652e636f6d",
              [(":method", "GET"), (":scheme", "http"), (":path", "/"),
               (":authority", "www.example.com")]),
    "C.4.1": ("828684418cf1e3c2e5f23a6ba0ab90f4ff",
              [(":method", "GET"), (":scheme", "http"), (":path", "/"),
               (":authority", "www.example.com")]),
    "C.5.1": ("4803333032580770726976617465611d4d6f6e2c203231204f637420323031332032303a31333a3231"
              "20474d546e1768747470733a2f2f7777772e6578616d706c652e636f6d",
              [(":status", "302"), ("cache-control", "private"),
               ("date", "Mon, 21 Oct 2013 20:13:21 GMT"), ("location", "https://www.example.com")]),
    "C.6.1": ("488264025885aec3771a4b6196d07abe941054d444a8200595040b8166e082a62d1bff6e919d29ad17"
              "1863c78f0b97c8e9ae82ae43d3",
              [(":status", "302"), ("cache-control", "private"),
               ("date", "Mon, 21 Oct 2013 20:13:21 GMT"), ("location", "https://www.example.com")]),
}  # fmt: skip


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_of_the_standard_are_decoded(name: str) -> None:
    block, fields = EXAMPLES[name]
    assert list(decode(bytes.fromhex(block))) == fields


@pytest.mark.parametrize(
    ("value", "prefix", "digits"), [(10, 5, "0a"), (1337, 5, "1f9a0a"), (42, 8, "2a")]
)
def test_integers_are_those_of_the_standard(value: int, prefix: int, digits: str) -> None:
    """RFC 7541, C.1."""
    assert hpack._integer(value, prefix, 0).hex() == digits
    assert hpack._read_integer(bytes.fromhex(digits), 0, prefix) == (value, len(digits) // 2)


TEXT = st.text(st.characters(max_codepoint=127), max_size=300)


@given(st.lists(st.one_of(st.tuples(TEXT, TEXT), st.sampled_from(STATIC))))
def test_each_encoded_block_is_decoded(fields: list[tuple[str, str]]) -> None:
    assert list(decode(encoded(fields))) == fields


def huffman(raw: bytes) -> bytes:
    codes = {symbol: code for code, symbol in hpack._SYMBOLS.items()}
    bits = "".join(f"{codes[byte][1]:0{codes[byte][0]}b}" for byte in raw)
    bits += "1" * (-len(bits) % 8)
    return bytes(int(bits[at : at + 8], 2) for at in range(0, len(bits), 8))


@given(st.binary(max_size=400))
@example(bytes(range(256)))
def test_each_string_in_huffman_s_code_is_decoded(raw: bytes) -> None:
    value = huffman(raw)
    block = b"\x00\x01a" + hpack._integer(len(value), 7, 0x80) + value
    assert decode(block) == (("a", raw.decode("latin-1")),)


def test_the_code_is_complete_but_for_the_end_of_a_string() -> None:
    """Kraft's sum: every sequence of bits is a code, or begins as the one that ends a string."""
    lengths = [length for length, _ in hpack._SYMBOLS]
    assert len(lengths) == 256
    assert sum(2 ** (30 - length) for length in lengths) + 1 == 2**30


@given(st.binary(max_size=2_000))
def test_any_bytes_are_decoded_or_malformed(block: bytes) -> None:
    """No block expands beyond its bytes: the longest field of one byte has 32 of them."""
    try:
        fields = decode(block)
    except MalformedBlock:
        return
    assert len(fields) <= len(block)
    assert sum(len(name) + len(value) for name, value in fields) <= 40 * len(block)


@pytest.mark.parametrize(
    ("block", "problem"),
    [
        ("be", "62"),  # the first entry of a dynamic table
        ("80", "0"),
        ("7e0161", "62"),  # a name from a dynamic table
        ("3fe11f", "dynamic table"),  # its size becomes 4096
        ("8220", "dynamic table"),  # its size is announced after a field
        ("400a61", "incomplete"),
        ("40", "incomplete"),
        ("ffffffffffff7f", "too large"),
        ("00016184ffffffff", "Huffman"),  # the end of a string
        ("0001618100", "padding"),
        ("00016182f8ff", "padding"),  # longer than 7 bits
    ],
)
def test_a_malformed_block_is_refused(block: str, problem: str) -> None:
    with pytest.raises(MalformedBlock, match=problem):
        decode(bytes.fromhex(block))


def test_a_table_of_no_bytes_may_be_announced() -> None:
    """A server announces that it uses the size which the client has set."""
    assert decode(b"\x20\x88") == ((":status", "200"),)


# ---- dynamic tables ----

# RFC 7541, C.3 to C.6: blocks of one connection, and the size of the table after each. The table of
# the responses has 256 bytes.
SEQUENCES = {
    "C.3": (4_096, [
        ("828684410f7777772e6578616d706c652e636f6d", 57),
        ("828684be58086e6f2d6361636865", 110),
        ("828785bf400a637573746f6d2d6b65790c637573746f6d2d76616c7565", 164),
    ]),
    "C.4": (4_096, [
        ("828684418cf1e3c2e5f23a6ba0ab90f4ff", 57),
        ("828684be5886a8eb10649cbf", 110),
        ("828785bf408825a849e95ba97d7f8925a849e95bb8e8b4bf", 164),
    ]),
    "C.5": (256, [
        ("4803333032580770726976617465611d4d6f6e2c203231204f637420323031332032303a31333a323120474d"
         "546e1768747470733a2f2f7777772e6578616d706c652e636f6d", 222),
        ("4803333037c1c0bf", 222),
        ("88c1611d4d6f6e2c203231204f637420323031332032303a31333a323220474d54c05a04677a69707738666f"
         "6f3d4153444a4b48514b425a584f5157454f50495541585157454f49553b206d61782d6167653d333630303b"
         "2076657273696f6e3d31", 215),
    ]),
    "C.6": (256, [
        ("488264025885aec3771a4b6196d07abe941054d444a8200595040b8166e082a62d1bff6e919d29ad171863c7"
         "8f0b97c8e9ae82ae43d3", 222),
        ("4883640effc1c0bf", 222),
        ("88c16196d07abe941054d444a8200595040b8166e084a62d1bffc05a839bd9ab77ad94e7821dd7f2e6c7b335"
         "dfdfcd5b3960d5af27087f3672c1ab270fb5291f9587316065c003ed4ee5b1063d5007", 215),
    ]),
}  # fmt: skip
REQUESTS = [
    [(":method", "GET"), (":scheme", "http"), (":path", "/"), (":authority", "www.example.com")],
    [(":method", "GET"), (":scheme", "http"), (":path", "/"), (":authority", "www.example.com"),
     ("cache-control", "no-cache")],
    [(":method", "GET"), (":scheme", "https"), (":path", "/index.html"),
     (":authority", "www.example.com"), ("custom-key", "custom-value")],
]  # fmt: skip
RESPONSES = [
    [(":status", "302"), ("cache-control", "private"), ("date", "Mon, 21 Oct 2013 20:13:21 GMT"),
     ("location", "https://www.example.com")],
    [(":status", "307"), ("cache-control", "private"), ("date", "Mon, 21 Oct 2013 20:13:21 GMT"),
     ("location", "https://www.example.com")],
    [(":status", "200"), ("cache-control", "private"), ("date", "Mon, 21 Oct 2013 20:13:22 GMT"),
     ("location", "https://www.example.com"), ("content-encoding", "gzip"),
     ("set-cookie", "foo=ASDJKHQKBZXOQWEOPIUAXQWEOIU; max-age=3600; version=1")],
]  # fmt: skip


@pytest.mark.parametrize("name", SEQUENCES)
def test_blocks_of_one_connection_are_decoded(name: str) -> None:
    table_bytes, blocks = SEQUENCES[name]
    decoder = Decoder(table_bytes, 16_384)
    found = []
    for block, size in blocks:
        found.append(list(decoder.decode(bytes.fromhex(block))))
        assert decoder._size == size
    assert found == (REQUESTS if name in ("C.3", "C.4") else RESPONSES)


def test_a_smaller_table_drops_its_oldest_entries() -> None:
    decoder = Decoder(4_096, 16_384)
    decoder.decode(b"\x40\x01a\x011" + b"\x40\x01b\x012")
    assert decoder.decode(b"\x3f\x03\xbe") == (("b", "2"),)  # 34 bytes: one entry
    with pytest.raises(MalformedBlock):
        decoder.decode(b"\xbf")
    decoder.decode(b"\x20\x3f\xe1\x1f" + b"\x40\x01c\x013")  # empty, and then 4,096 bytes
    assert decoder.decode(b"\xbe") == (("c", "3"),)
    for block in (b"\xbf", b"\x3f\xe2\x1f", b"\x82\x20"):
        with pytest.raises(MalformedBlock):
            decoder.decode(block)


def test_fields_above_the_limit_are_not_kept_and_the_table_stays_valid() -> None:
    decoder = Decoder(4_096, 100)
    with pytest.raises(HeadersTooLarge):
        decoder.decode(b"\x40\x01a\x0a" + b"x" * 10 + b"\xbe" * 10_000)
    assert decoder.decode(b"\xbe") == (("a", "x" * 10),)


def test_the_version_changes_with_the_table() -> None:
    decoder = Decoder(4_096, 16_384)
    versions = []
    for block in (b"\x82", b"\x40\x01a\x011", b"\xbe", b"\x00\x01a\x011", b"\x20"):
        decoder.decode(block)
        versions.append(decoder.version)
    assert versions[0] < versions[1] == versions[2] == versions[3] < versions[4]


@given(st.binary(max_size=200))
def test_no_block_breaks_a_decoder(block: bytes) -> None:
    decoder = Decoder(256, 1_000)
    for _ in range(2):
        try:
            decoder.decode(block)
        except (MalformedBlock, HeadersTooLarge):
            break
    assert 0 <= decoder._size <= 256
