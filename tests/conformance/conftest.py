"""The option of the conformance suite: how many SDKs."""

from __future__ import annotations

import pytest

# So that a failed scenario shows what it compared.
pytest.register_assert_rewrite("conformance.scenarios")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--every-sdk",
        action="store_true",
        help="all pinned versions of the official SDKs, each in TLS and in plaintext",
    )


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Figures that tests recorded."""
    for report in terminalreporter.getreports("passed") + terminalreporter.getreports("failed"):
        for name, figure in report.user_properties:
            if report.when == "call":
                terminalreporter.write_line(f"{name}: {figure}")
