"""Retries and dead letters of messages that consumers send back.

`delivery/pop` retries leased messages itself, by the rules in `policy`.
"""
