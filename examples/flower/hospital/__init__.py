"""A federation of hospitals as a Flower app."""
