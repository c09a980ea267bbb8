"""Reading: records out of the log, each checked."""
