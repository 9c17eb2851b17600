"""Aggregations of messages, by the name of `aggregation.mode`, one file each."""
