"""The server of a real federation."""
