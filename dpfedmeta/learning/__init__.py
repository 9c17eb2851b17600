"""Networks, adaptation, meta-gradients, record-level DP-SGD, server steps and evaluation."""
