"""What two Aerobee processes must agree on.

Pure: no I/O, no clock, no grpc; each module has test vectors.
"""
