"""Rules for leases that client and proxy settle and renew: when one is over, and refused ones.

How often and for how long a lease is renewed is not here: a client renews what it processes now,
and the proxy what its clients have not settled yet.
"""

from __future__ import annotations

from aerobee.broker.v1.pop_pb2 import AckResponse

from aerobee_wire.status import Code, MqError, failure_of

MAX_RENEWED_MS = 3 * 3_600_000  # a lease is not renewed for longer


def is_over(failure: BaseException | None) -> bool:
    """Return whether a call about a lease failed because the lease has ended.

    After any other failure the lease may still exist, so the call may be retried.
    """
    return isinstance(failure, MqError) and failure.code is Code.INVALID_RECEIPT_HANDLE


def ack_failures(
    answer: AckResponse, lease_sets: int, *, broker_name: str, caller: str
) -> list[dict[int, MqError]]:
    """Return for each lease set of a request the leases that were not acknowledged.

    Args:
        answer: The broker's answer to the request.
        lease_sets: The number of lease sets in the request.
        broker_name: For the error.
        caller: "client" or "proxy", for the error.

    Returns:
        For each set, in order: index in its queue offsets → failure.

    Raises:
        MqError: VERSION_NOT_SUPPORTED. The broker is too old for lease sets, and its empty answer
            would look like success.
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
