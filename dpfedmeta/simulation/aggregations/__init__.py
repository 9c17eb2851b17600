"""Who adds messages up, by the name of `aggregation.mode`, one file each."""
