"""Reading: records of the log, each checked."""
