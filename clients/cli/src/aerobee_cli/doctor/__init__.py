"""Diagnose a cluster: find problems of clients and operators."""
