"""The broker: stores messages on a commit log and gives them to consumers. Knows no route."""
