"""What Python and the commands call."""
