"""The client of a real federation."""
