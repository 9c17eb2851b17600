"""A federation of real clients: what the server asks, what a client answers, and the wire between them."""
