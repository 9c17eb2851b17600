"""Other accountants and published claims, for comparison."""
