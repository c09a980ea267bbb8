"""What every client runs on: its clock, its pauses after failures, its loop thread."""
