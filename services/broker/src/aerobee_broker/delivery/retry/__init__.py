"""What becomes of a message that was not consumed: another attempt, or the dead-letter topic."""
