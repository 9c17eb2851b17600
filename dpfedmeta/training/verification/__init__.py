"""Verification of a run directory against its ledger."""
