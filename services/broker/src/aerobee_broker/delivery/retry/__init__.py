"""Retries and dead letters of messages that consumers send back.

`delivery/pop` does the same for leased messages, by the rules of `policy`.
"""
