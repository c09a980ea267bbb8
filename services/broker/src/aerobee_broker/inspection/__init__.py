"""Inspects the store of a broker without changing it.

`check` verifies the store of a stopped broker, and `dump` prints it. `version` prints the versions
of Aerobee that open the store.
"""
