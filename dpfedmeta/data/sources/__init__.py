"""One file for each source of images."""
