"""Federation on many processes, launched by torchrun: rank 0 runs the loop, the others compute their shares."""
