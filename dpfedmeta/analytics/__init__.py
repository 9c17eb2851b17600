"""Questions to all clients that serve training: counts with noise, each charged in a ledger before it is released."""
