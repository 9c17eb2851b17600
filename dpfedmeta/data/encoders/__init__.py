"""Public encoders of images, one file each: name, licence, training data, weights, network."""

SUFFIX = "_encoder"
