"""Privacy events: the costs of rounds and of their noise, in the vocabulary of plan, ledger and accountant."""
