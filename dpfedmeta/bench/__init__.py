"""Speed and memory of the engines, beside those of other libraries on the same episodes and weights."""
