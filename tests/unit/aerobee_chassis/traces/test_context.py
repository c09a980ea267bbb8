"""The trace context of a message: what counts as sampled, and what is ignored."""

from __future__ import annotations

import pytest

from aerobee_chassis.traces.spans import TraceContext, sampled_context

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@pytest.mark.parametrize("flags", ["01", "03", "ff"])
def test_a_sampled_context_has_the_ids_of_the_producer(flags: str) -> None:
    found = sampled_context(f"00-{TRACE}-{SPAN}-{flags}".encode())
    assert found == TraceContext(bytes.fromhex(TRACE), bytes.fromhex(SPAN))


def test_a_later_version_may_have_more_fields() -> None:
    assert sampled_context(f"cc-{TRACE}-{SPAN}-01-more".encode()) is not None


@pytest.mark.parametrize(
    "text",
    [
        "",
        f"00-{TRACE}-{SPAN}-00",
        f"00-{TRACE}-{SPAN}-02",
        f"00-{TRACE}-{SPAN}-01-more",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-01\n",
        "00-ab",
    ],
)
def test_unsampled_and_invalid_contexts_are_ignored(text: str) -> None:
    assert sampled_context(text.encode()) is None
