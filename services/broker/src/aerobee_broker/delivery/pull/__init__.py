"""Reads by queue offset: pull, long polls, consumer offsets, and queries of offsets."""
