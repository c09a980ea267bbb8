"""Dead letters: their states, and the jobs that send them again or dismiss them."""
