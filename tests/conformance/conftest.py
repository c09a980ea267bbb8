"""The option of the conformance suite: how many SDKs."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--every-sdk",
        action="store_true",
        help="all pinned versions of the official SDKs, each in TLS and in plaintext",
    )
