"""The commit log and the files that are open."""
