"""What was charged, on disk before it is released."""
