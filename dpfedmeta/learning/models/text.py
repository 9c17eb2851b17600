"""A network for sequences of tokens: the mean of embeddings, as a linear map of how often each token occurs."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class TokenShares(nn.Module):
    """Share of each token in a sequence; padding (0) does not count.

    The mean of the tokens' embeddings is this times the matrix of all embeddings. So it is a linear layer for
    gradients of any order, for per-record gradients and for Opacus.
    """

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.vocabulary = vocabulary

    def forward(self, records: Tensor) -> Tensor:
        """[n, length] whole numbers in range(vocabulary), float32 -> [n, vocabulary], rows of sum 1."""
        tokens = records.long()
        counts = records.new_zeros(len(records), self.vocabulary)
        counts = counts.scatter_add(1, tokens, (tokens > 0).to(records.dtype))
        return counts / counts.sum(1, keepdim=True).clamp_min(1.0)


def text_layers(vocabulary: int, width: int) -> nn.ModuleList:
    """Embeddings of `width` numbers, their mean, and one hidden layer."""
    embedding = nn.Linear(vocabulary, width, bias=False)
    # The mean of a few rows is what the next layer sees, however many tokens there are; so small that server steps,
    # which do not shrink with the weights, move them.
    torch.nn.init.normal_(embedding.weight, std=0.25)
    return nn.ModuleList([TokenShares(vocabulary), embedding, nn.Linear(width, width), nn.ReLU()])
