"""Lower bounds on epsilon from many runs, or from one run with many canaries."""
