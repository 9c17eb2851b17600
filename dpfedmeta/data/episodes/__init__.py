"""Episodes: the support and query sets of one client, drawn from a pool of classes."""
