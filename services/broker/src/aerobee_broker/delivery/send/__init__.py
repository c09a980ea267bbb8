"""Sending: from a Send request to the commit log."""
