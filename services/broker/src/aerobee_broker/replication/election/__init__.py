"""Decide which replica is master: by elections through etcd, or by options and an operator."""
