"""Keys, certificates and invitations of a federation."""
