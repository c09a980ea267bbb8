"""Delivery of delayed messages, which have a delay level or a delivery time."""
