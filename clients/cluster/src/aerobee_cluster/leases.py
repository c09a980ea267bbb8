"""Interpret the broker's answers about leases, for the client and the proxy.

The client and the proxy renew leases by different rules, so renewal is not part of this module.
"""

from __future__ import annotations

from aerobee.broker.v1.pop_pb2 import AckResponse

from aerobee_wire.status import Code, MqError, failure_of

MAX_RENEWED_MS = 3 * 3_600_000  # the client and the proxy stop renewing a lease after this time


def is_over(failure: BaseException | None) -> bool:
    """Return whether a call about a lease failed because the lease has ended.

    After any other failure the lease may still exist, so the call may be retried.
    """
    return isinstance(failure, MqError) and failure.code is Code.INVALID_RECEIPT_HANDLE


def ack_failures(
    answer: AckResponse, lease_sets: int, *, broker_name: str, caller: str
) -> list[dict[int, MqError]]:
    """Return the leases that a broker did not acknowledge, for each lease set of the request.

    Args:
        answer: The broker's answer to the request.
        lease_sets: The number of lease sets in the request.
        broker_name: The name of the broker, for the error text.
        caller: "client" or "proxy", for the error text.

    Returns:
        One dictionary for each lease set, in order. It maps the index of a lease in the set to the
        failure of that lease.

    Raises:
        MqError: With the code VERSION_NOT_SUPPORTED if the broker is too old for lease sets. Its
            empty answer would otherwise look like success.
    """
    if answer.lease_sets != lease_sets:
        raise MqError(
            Code.VERSION_NOT_SUPPORTED,
            f"broker {broker_name} acknowledges no sets of leases: it is older than this "
            f"{caller}, so bring it to the same version",
        )
    failures: list[dict[int, MqError]] = [{} for _ in range(lease_sets)]
    for refused in answer.failures:
        failure = failure_of(refused.result)
        if failure is not None:
            failures[refused.lease_set][refused.place] = failure
    return failures
