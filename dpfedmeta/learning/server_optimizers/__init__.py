"""Steps of the server: from moments of past releases to a direction, or to the model. Pure post-processing."""

SUFFIX = "_rule"
