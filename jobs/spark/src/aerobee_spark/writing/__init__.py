"""From Arrow columns to messages at the broker."""
