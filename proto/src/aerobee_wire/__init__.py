"""Implement the rules on which two Aerobee processes must agree.

This package is pure: no I/O, no clock, no grpc. Each module has test vectors.
"""
