"""Readers of a user's own data: folders, lists, tables, arrays."""
