"""Which messages a subscription wants: by tag, or by an SQL92 expression."""
