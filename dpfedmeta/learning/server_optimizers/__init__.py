"""Steps of the server: from moments of past releases to a direction. Pure post-processing."""
