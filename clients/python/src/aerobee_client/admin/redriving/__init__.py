"""Sending dead letters again: what is sent, from where it is read, and what is kept of it."""
