"""Header blocks: the examples of RFC 7541, and what no block may do."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from aerobee_http2 import hpack
from aerobee_http2.hpack import STATIC, MalformedBlock, decode, encoded

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
