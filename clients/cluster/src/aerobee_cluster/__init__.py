"""Algorithms that the classic client and the proxy share, as callers of a cluster.

This package imports neither of them, and no transport or logger: the caller passes these in.
"""
