"""Inspects the store of a broker. Changes nothing.

`check` verifies the store and `dump` prints it, both after the broker has stopped. `version` prints
the versions of Aerobee that open the store.
"""
