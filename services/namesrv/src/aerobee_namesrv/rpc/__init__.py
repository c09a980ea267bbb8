"""Implement the RPCs of NamesrvService, one file per kind of caller.

The handlers convert messages. They do not decide.
"""
