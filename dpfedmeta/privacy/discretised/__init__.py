"""Messages as whole numbers for exact sums."""
