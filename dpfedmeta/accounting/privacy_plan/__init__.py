"""The privacy plan: every constant that an epsilon depends on, fixed before round 0."""
