"""One benchmark per op."""
