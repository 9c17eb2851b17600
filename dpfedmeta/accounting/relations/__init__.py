"""Relations of records: what neighbouring data differ in, and how tables say it."""
