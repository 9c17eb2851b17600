"""Ledgers of privacy charges, on disk before the release."""
