"""Codes and the error that crosses the wire."""

from __future__ import annotations

import pickle

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


class Refusal(MqError):
    def __init__(self, address: str) -> None:
        super().__init__(Code.SYSTEM_BUSY, f"{address} is busy", retry_after_ms=7, about="x")
        self.address = address


def test_an_error_comes_out_of_a_pool_of_processes_as_it_was_raised() -> None:
    raised = Refusal("10.0.0.1:1")
    raised.add_context("here")
    caught = pickle.loads(pickle.dumps(raised))
    assert type(caught) is Refusal
    assert vars(caught) == vars(raised) and caught.args == raised.args


def test_the_address_of_the_master_travels() -> None:
    refused = MqError(Code.SERVICE_NOT_AVAILABLE, "x", master_address="10.0.0.1:10911")
    trailers = trailers_of(refused)
    assert ("aerobee-master-address", "10.0.0.1:10911") in trailers
    got = error_from("x", trailers)
    assert got is not None and got.master_address == "10.0.0.1:10911"
    plain = error_from("x", trailers_of(MqError(Code.SERVICE_NOT_AVAILABLE, "x")))
    assert plain is not None and plain.master_address == ""
