"""Transactions: half messages, their commit, rollback and check-back."""
