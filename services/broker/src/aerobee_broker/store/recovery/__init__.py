"""Recovery: from finding the files of a store to serving them."""
