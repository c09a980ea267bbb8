"""Run the demo of `aerobee demo`: the main use of the message queue, on real data."""
