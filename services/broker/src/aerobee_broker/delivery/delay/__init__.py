"""Messages for later: delay levels and delivery times."""
