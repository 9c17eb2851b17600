"""Task file -> class pool -> episode -> population of clients."""
