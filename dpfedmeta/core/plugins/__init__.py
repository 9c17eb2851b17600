"""Plugins: members of a seam by name, and code of the user's own."""
