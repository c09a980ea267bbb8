"""What was cut off the log of a replica: which messages it holds, and sending them again."""
