"""Reading by queue offset: pull, long polls, consumer offsets, queries."""
