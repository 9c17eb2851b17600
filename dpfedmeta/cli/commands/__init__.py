"""Commands, one file for each: `dpfedmeta train` is the `main` of train_command.py.

What a command computes with is imported where it is used: --help and bad input shall not wait for PyTorch.
"""

SUFFIX = "_command"
