"""Layers without hidden state: what they need from other images comes in as `reference`; and layers for tokens."""

from typing import cast

import torch
from torch import Tensor, nn

from dpfedmeta.learning.models.layers.convolution import ConvolutionSpec, convolution
from dpfedmeta.learning.models.layers.normalisation import ReferenceBatchNorm
from dpfedmeta.learning.models.spec import NetworkSpec

LENGTH_FLOOR = 1e-6


class Block(nn.Module):
    """Convolution, normalisation, pooling, nonlinearity.

    Pooling before the nonlinearity gives the same values for less work where it commutes with it: a maximum
    commutes with whatever is monotone, an average does not and comes after it.
    """

    def __init__(
        self,
        channels: int,
        spec: NetworkSpec,
        *,
        kernel: int = 3,
        stride: int = 1,
        pool: nn.Module | None = None,
        active: bool = True,
    ) -> None:
        super().__init__()
        width, norm = spec.width, spec.norm
        # The normalisations bring their own shift.
        how = ConvolutionSpec(stride=(stride, stride), padding=(kernel // 2, kernel // 2), precision=spec.precision)
        self.how = how
        self.convolution = nn.Conv2d(
            channels, width, kernel, stride=how.stride, padding=how.padding, bias=norm == "none"
        )
        # Large enough (He et al. 2015, https://arxiv.org/abs/1502.01852) that server steps, which do not shrink with
        # the
        # weights, stay small beside them.
        nn.init.kaiming_normal_(self.convolution.weight, nonlinearity="relu")
        if self.convolution.bias is not None:
            nn.init.zeros_(self.convolution.bias)
        self.norm: nn.Module
        if norm == "group":
            self.norm = nn.GroupNorm(spec.groups or width, width)
        elif norm == "batch":
            self.norm = ReferenceBatchNorm(width, pooled=isinstance(pool, nn.MaxPool2d))
        else:
            self.norm = nn.Identity()
        self.shrink = pool or nn.Identity()
        self.nonlinearity = {"relu": nn.ReLU, "tanh": nn.Tanh}[spec.activation]() if active else nn.Identity()

    def forward(self, images: Tensor, reference: int | None = None) -> Tensor:
        """[n, channels, h, w] -> [n, width, smaller h, smaller w]."""
        if isinstance(self.norm, ReferenceBatchNorm):
            rectified = isinstance(self.nonlinearity, nn.ReLU)
            hidden = self.norm(self._convolved(images, self.norm), reference, rectified=rectified)
            hidden = hidden if rectified else self.nonlinearity(hidden)
            return cast(Tensor, hidden if self.norm.pooled else self.shrink(hidden))
        if self.how.precision == "bfloat16":
            return self.after(self.norm(self._shifted(convolution(images, self.convolution.weight, self.how))))
        # Through the module, on which Opacus hangs its hooks.
        return self.after(self.norm(self.convolution(images)))

    def _convolved(self, images: Tensor, norm: ReferenceBatchNorm) -> Tensor:
        """Times the signs that the normalisation asks for."""
        signs = norm.signs() if norm.pooled else None
        weight = self.convolution.weight if signs is None else self.convolution.weight * signs.view(-1, 1, 1, 1)
        return convolution(images, weight, self.how)

    def _shifted(self, hidden: Tensor) -> Tensor:
        bias = self.convolution.bias
        return hidden if bias is None else hidden + bias.view(-1, 1, 1)

    def after(self, hidden: Tensor) -> Tensor:
        """Pooling and nonlinearity."""
        if isinstance(self.shrink, nn.MaxPool2d):
            return cast(Tensor, self.nonlinearity(self.shrink(hidden)))
        return cast(Tensor, self.shrink(self.nonlinearity(hidden)))


class OverlappingAverage(nn.AvgPool2d):
    """Average pooling over overlapping windows that a GPU differentiates rightly.

    Where channels lie last in memory, PyTorch's backward pass on a GPU is wrong for such windows (2.11 with CUDA 13,
    one H200: apart by the length of the gradient); tests/simulation/test_devices.py compares.
    """

    def forward(self, images: Tensor) -> Tensor:
        """[n, channels, height, width] -> the means of its windows."""
        return super().forward(images.contiguous() if images.is_cuda else images)


class RecordScale(nn.Module):
    """Scale each feature vector to one fixed length, so that a per-record clip bound clips nothing needlessly."""

    def __init__(self, length: float) -> None:
        super().__init__()
        self.length = length

    def forward(self, features: Tensor) -> Tensor:
        """[n, d] -> [n, d], each row of norm `length`."""
        return self.length * nn.functional.normalize(features, dim=1)


class SupportScale(nn.Module):
    """Centre features on the mean of the first `reference` rows and scale those to one mean square length.

    The inner loop then has the same curvature whatever the body's scale, so one inner step size stays stable.
    """

    def __init__(self, length: float) -> None:
        super().__init__()
        self.length = length

    def forward(self, features: Tensor, reference: int | None = None) -> Tensor:
        """[n, d] -> [n, d]."""
        size = features.shape[0] if reference is None else reference
        centred = features - features[:size].sum(0) / size
        return self.length * centred * torch.rsqrt(centred[:size].square().sum(1).mean() + LENGTH_FLOOR)


class Body(nn.Module):
    """Body of a network: maps images, vectors or sequences to features."""

    def __init__(self, layers: nn.ModuleList, scale: nn.Module) -> None:
        super().__init__()
        self.layers = layers
        self.scale = scale

    def forward(self, images: Tensor, reference: int | None = None) -> Tensor:
        """[n, channels, height, width] or [n, numbers] -> [n, features]."""
        hidden = images
        for layer in self.layers:
            hidden = layer(hidden, reference) if isinstance(layer, Block) else layer(hidden)
        features: Tensor = hidden.flatten(1)
        coupled = isinstance(self.scale, SupportScale)
        return cast(Tensor, self.scale(features, reference) if coupled else self.scale(features))


class FewShotNetwork(nn.Module):
    """A body that computes features and a linear head; `meta.adapt: head` adapts the latter."""

    def __init__(self, body: Body, head: nn.Linear) -> None:
        super().__init__()
        self.body = body
        self.head = head

    def forward(self, images: Tensor, reference: int | None = None) -> Tensor:
        """[n, channels, height, width] -> logits [n, ways]."""
        logits: Tensor = self.head(self.body(images, reference))
        return logits


class TokenShares(nn.Module):
    """Share of each token in a sequence; padding (0) does not count.

    The mean of the tokens' embeddings is this times the matrix of all embeddings. So it is a linear layer for
    gradients of any order, for per-record gradients and for Opacus.
    """

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.vocabulary = vocabulary

    def forward(self, records: Tensor) -> Tensor:
        """[n, length] whole numbers in range(vocabulary), float32 -> [n, vocabulary], rows of sum 1; NaN stays NaN."""
        tokens = records.nan_to_num(0.0).long()
        # Zeros, and no numbers for a null record.
        counts = (0.0 * records[:, :1]).expand(records.shape[0], self.vocabulary).clone()
        counts = counts.scatter_add(1, tokens, (tokens > 0).to(records.dtype))
        return counts / counts.sum(1, keepdim=True).clamp_min(1.0)


def text_layers(vocabulary: int, width: int) -> nn.ModuleList:
    """Embeddings of `width` numbers, their mean, and one hidden layer."""
    embedding = nn.Linear(vocabulary, width, bias=False)
    # The mean of a few rows is what the next layer sees, however many tokens there are; so small that server steps,
    # which do not shrink with the weights, move them.
    torch.nn.init.normal_(embedding.weight, std=0.25)
    return nn.ModuleList([TokenShares(vocabulary), embedding, nn.Linear(width, width), nn.ReLU()])
