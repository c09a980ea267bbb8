"""Leases of received messages: pop, renew, acknowledge. Knows no public protocol."""
