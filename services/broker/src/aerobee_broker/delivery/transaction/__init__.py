"""Transactional messages: half messages, and how they are committed, rolled back and checked."""
