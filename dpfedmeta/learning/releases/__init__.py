"""Record-level releases of a client, by the name of `record.release`, one file each."""
