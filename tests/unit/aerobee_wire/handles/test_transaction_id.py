"""Transaction ids: round trip, and refusal of all that `encode` did not write."""

from __future__ import annotations

import base64

from hypothesis import given
from hypothesis import strategies as st

from aerobee_wire.handles import transaction_id
from aerobee_wire.handles.transaction_id import TransactionId
from aerobee_wire.status import Code
from support.codes import raises_code

ONE = TransactionId("broker-a", "space%orders", "01AB", 4_711)
NAMES = st.text(max_size=60, alphabet=st.characters(exclude_categories=["Cs"]))


@given(st.builds(TransactionId, NAMES, NAMES, NAMES, st.integers(0, (1 << 63) - 1)))
def test_decode_returns_what_was_encoded(character: TransactionId) -> None:
    text = transaction_id.encode(character)
    assert transaction_id.decode(text) == character
    assert len(text) <= transaction_id.MAX_CHARACTERS


@given(st.data())
def test_changed_text_is_refused(data: st.DataObject) -> None:
    text = transaction_id.encode(ONE)
    position = data.draw(st.integers(0, len(text) - 1))
    other = data.draw(st.characters().filter(lambda character: character != text[position]))
    with raises_code(Code.INVALID_TRANSACTION_ID):
        transaction_id.decode(text[:position] + other + text[position + 1 :])


@given(st.one_of(st.text(), st.binary().map(lambda raw: base64.urlsafe_b64encode(raw).decode())))
def test_other_texts_are_refused(text: str) -> None:
    with raises_code(Code.INVALID_TRANSACTION_ID):
        transaction_id.decode(text)


def test_too_long_name_is_refused() -> None:
    with raises_code(Code.INVALID_PARAMETER, "message_id"):
        transaction_id.encode(TransactionId("b", "g", "é" * 128, 0))
