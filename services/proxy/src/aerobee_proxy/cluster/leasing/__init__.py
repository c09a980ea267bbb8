"""Leases of received messages: pop, renew, acknowledge. Independent of the public protocol."""
