"""Broadcast: each member gets every message and keeps its own offsets."""
