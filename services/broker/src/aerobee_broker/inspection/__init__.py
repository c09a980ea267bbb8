"""Looks into the store of a broker: `check` verifies it, `dump` shows it, both once the broker has
stopped; `version` says which versions of Aerobee open it. Changes nothing.
"""
