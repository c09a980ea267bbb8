"""Filters of subscriptions, which select messages by tag or by an SQL92 expression."""
