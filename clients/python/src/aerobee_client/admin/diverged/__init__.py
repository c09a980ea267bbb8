"""List the messages that were cut off the log of a replica, and send them again."""
