"""Implement the RPCs of the broker, one file per service.

The handlers convert messages. They do not decide.
"""
