"""Define the counters of a proxy. Metrics and logs read them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class ProxyCounts:
    """The number of messages, leases and calls that this process has handled since its start."""

    sent: int = 0
    received: int = 0
    acknowledged: int = 0
    subscription_conflicts: int = 0
    leases_renewed: int = 0
    unauthorized: int = 0
    transactions_ended: int = 0
    transaction_checks: int = 0
