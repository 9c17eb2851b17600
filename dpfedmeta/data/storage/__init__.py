"""Archives, decoded caches and file formats of images."""
