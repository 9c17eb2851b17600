"""Layers without hidden state, and layers whose gradients are separate for each example."""
