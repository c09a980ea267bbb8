"""What goes: expired log files, and the records of deleted topics."""
