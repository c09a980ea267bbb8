"""The commit log, and the bounded set of open files that reads use."""
