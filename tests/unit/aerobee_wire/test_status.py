"""Codes and the error that crosses the wire."""

from __future__ import annotations

import grpc
import pytest

from aerobee_wire.status import (
    GRPC_STATUS,
    RETRYABLE,
    Code,
    MqError,
    error_from,
    grpc_status_of,
    trailers_of,
)


@pytest.mark.parametrize("code", list(Code))
def test_every_code_is_decoded_from_its_trailers(code: Code) -> None:
    sent = MqError(code, "do this", retry_after_ms=20)
    got = error_from("do this", trailers_of(sent))
    assert got is not None
    assert (got.code, got.message) == (code, "do this")
    assert (got.retryable, got.retry_after_ms) == (code in RETRYABLE, 20)


@pytest.mark.parametrize("code", list(Code))
def test_every_code_has_a_grpc_status_that_exists(code: Code) -> None:
    assert hasattr(grpc.StatusCode, grpc_status_of(code))
    assert set(GRPC_STATUS) >= RETRYABLE


def test_retryable_can_be_overridden() -> None:
    got = error_from("x", trailers_of(MqError(Code.SERVICE_NOT_AVAILABLE, "x", retryable=False)))
    assert got is not None and got.retryable is False


def test_code_of_a_newer_peer_keeps_its_name() -> None:
    trailers = [("aerobee-code", "BRAND_NEW"), ("aerobee-code-number", "7777")]
    got = error_from("what now", trailers)
    assert got is not None
    assert (got.code, got.message) == (Code.SYSTEM_ERROR, "BRAND_NEW: what now")


def test_foreign_trailers_carry_no_error() -> None:
    assert error_from("x", [("grpc-message", "x"), ("aerobee-code-number-bin", b"1")]) is None
