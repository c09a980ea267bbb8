"""Create the parts of a broker and connect them. This package starts nothing."""
