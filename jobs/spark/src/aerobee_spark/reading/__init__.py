"""Read messages by queue offset and decode them into Arrow columns."""
