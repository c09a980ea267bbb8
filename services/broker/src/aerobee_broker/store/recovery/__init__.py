"""What a store does between finding its files and serving them."""
