"""Provide the command `aerobee`. It uses the client, and starts servers as separate processes."""
