"""Delivery by pop: leases of messages, acknowledgements, invisible durations, lease journal."""
