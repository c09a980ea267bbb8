"""Convert failed calls to name servers and brokers to MqError. The chassis makes the calls."""

from __future__ import annotations

from aerobee_chassis.rpc.transport import CallFailed
from aerobee_cluster.transport import CODE_OF_STATUS
from aerobee_wire.status import Code, MqError, error_from

_CODE_OF_STATUS = {**CODE_OF_STATUS, "DEADLINE_EXCEEDED": Code.REQUEST_TIMEOUT}


def error_of(address: str, failure: CallFailed) -> MqError:
    """Return the error that a server answered with, or else an error that names its address."""
    answered = error_from(failure.message, failure.trailers)
    if answered is not None:
        return answered
    code = _CODE_OF_STATUS.get(failure.status, Code.BROKER_UNREACHABLE)
    reason = failure.message or failure.status
    retry = "; retry" if code in (Code.BROKER_UNREACHABLE, Code.REQUEST_TIMEOUT) else ""
    return MqError(code, f"no answer from {address}: {reason}{retry}")
