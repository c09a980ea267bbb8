"""Message ids for the redrives of these tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from aerobee_client.admin.redriving.message_ids import MessageIds


@pytest.fixture
def ids() -> Iterator[MessageIds]:
    ids = MessageIds()
    yield ids
    ids.close()
