"""Keys, masks, secret sharing and the neighbour graph of the protocol."""
