"""Random streams by key, and the exact distributions that are drawn from them."""
