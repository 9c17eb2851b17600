"""What a client releases of its records, by the name of `record.release`, one file each."""
