"""From queue offsets to Arrow columns."""
