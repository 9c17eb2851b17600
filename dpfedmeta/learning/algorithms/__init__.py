"""Methods by the name of `meta.method`, one file each."""
