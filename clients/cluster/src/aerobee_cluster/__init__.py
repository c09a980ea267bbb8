"""Provide the algorithms that the classic client and the proxy share when they call a cluster.

This package does not import the client, the proxy, a transport or a logger. The caller passes the
transport and callbacks in.
"""
