"""Networks of a user's own, sound and unsound, as `model.name: tests.planning.coupled_networks:NAME` names them."""

import random
from collections import OrderedDict
from contextlib import nullcontext

import numpy as np
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel


class Layer(nn.Module):
    """A function of a batch of features."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, features):
        return self.function(features)


def features_of(channels, image_size, width):
    return [
        nn.AvgPool2d(4),
        nn.Flatten(),
        nn.Linear(channels * (image_size // 4) ** 2, width),
        nn.LeakyReLU(),
    ]


def few_shot(make):
    """A factory of a body, which ends with what `make(width)` returns, and a head."""

    def factory(*, channels, image_size, ways, width, norm):
        body = nn.Sequential(*features_of(channels, image_size, width), make(width))
        return nn.Sequential(OrderedDict(body=body, head=nn.Linear(width, ways)))

    return factory


def function(apply):
    return few_shot(lambda width: Layer(apply))


class Gated(nn.Module):
    """Batch statistics behind a gate that is shut at first."""

    def __init__(self):
        super().__init__()
        self.gate = nn.Parameter(torch.zeros(1))

    def forward(self, features):
        return features - self.gate * features.mean(0)


class Remembering(nn.Module):
    """A running mean that batch after batch enters."""

    def __init__(self, as_buffer):
        super().__init__()
        self.register_buffer("running", torch.zeros(1)) if as_buffer else setattr(self, "running", 0.0)

    def forward(self, features):
        self.running = 0.9 * self.running + 0.1 * features.detach().mean()
        return features - self.running


class Imprinted(nn.Module):
    """The first batch that ever comes decides, as where a layer is initialised by data."""

    def __init__(self):
        super().__init__()
        self.scale = None

    def forward(self, features):
        if self.scale is None:
            self.scale = features.detach().abs().mean()
        return features / (self.scale + 1.0)


class Previous(nn.Module):
    """Looks at the batch before."""

    def __init__(self):
        super().__init__()
        self.before = None

    def forward(self, features):
        seen, self.before = self.before, features.detach().mean()
        return features if seen is None else features - seen


class OwnNoise(nn.Module):
    """Random numbers that PyTorch's global generator knows nothing of."""

    def __init__(self):
        super().__init__()
        self.generator = torch.Generator()

    def forward(self, features):
        return features + 0.1 * torch.randn(features.shape[1:], generator=self.generator)


class Failing(nn.Module):
    def forward(self, features):
        raise RuntimeError(f"no such thing\nas {len(features)} features")


class RandomBuffer(nn.Module):
    """A random projection, which is no weight, so no checkpoint holds it."""

    def __init__(self, width):
        super().__init__()
        self.register_buffer("projection", torch.randn(width, width))

    def forward(self, features):
        return features @ self.projection


mean_of_batch = function(lambda h: h - h.mean(0))
max_of_batch = function(lambda h: h / (1e-3 + h.max()))
softmax_over_batch = function(lambda h: h * torch.softmax(h, 0))
sorted_batch = function(lambda h: h - h.sort(0).values[:1])
zero_gate = few_shot(lambda width: Gated())
running_buffer = few_shot(lambda width: Remembering(True))
running_attribute = few_shot(lambda width: Remembering(False))
imprinted = few_shot(lambda width: Imprinted())
previous = few_shot(lambda width: Previous())
dropout = few_shot(lambda width: nn.Dropout(0.2))
silent_dropout = few_shot(lambda width: nn.Dropout(0.2).eval())
global_noise = function(lambda h: h + 0.1 * torch.randn_like(h))
own_noise = few_shot(lambda width: OwnNoise())
failing = few_shot(lambda width: Failing())
random_buffer = few_shot(RandomBuffer)


class Scaled(nn.Module):
    """A learned scalar, as the temperature of a cosine head."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, features):
        return self.scale * features


class Recurrent(nn.Module):
    """Rows of features as a sequence of numbers, through a recurrent layer."""

    def __init__(self, kind, width):
        super().__init__()
        self.layer = kind(1, width, batch_first=True)

    def forward(self, features):
        return self.layer(features[:, :, None])[0][:, -1]


class Attending(nn.Module):
    """Attention among the numbers of a row."""

    def __init__(self, *, exact):
        super().__init__()
        self.attention, self.exact = nn.MultiheadAttention(2, 1, batch_first=True), exact

    def forward(self, features):
        h = features.view(len(features), -1, 2)
        with sdpa_kernel([SDPBackend.MATH]) if self.exact else nullcontext():
            return self.attention(h, h, h, need_weights=False)[0].flatten(1)


class Bag(nn.Module):
    """Features as words of a table, averaged; `bound` holds the table's rows to a length."""

    def __init__(self, width, kind, bound=None):
        super().__init__()
        self.table, self.bagged = kind(16, width, max_norm=bound), kind is nn.EmbeddingBag

    def forward(self, features):
        found = self.table((100 * features).abs().long() % 16)
        return found if self.bagged else found.mean(1)


class Writing(nn.Module):
    """Writes into its weight or its buffer each time that it is called."""

    def __init__(self, where):
        super().__init__()
        self.where, self.scale = where, nn.Parameter(torch.ones(()))
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, features):
        if self.where == "buffer":
            self.calls += 1
        else:
            with torch.no_grad():
                self.scale.mul_(0.5)
        return self.scale * features


def changes_images(*, channels, image_size, ways, width, norm):
    """In-place arithmetic, as copied from a tutorial, on what others are given too."""

    class InPlace(nn.Module):
        def forward(self, images):
            return images.sub_(0.1)

    body = nn.Sequential(InPlace(), *features_of(channels, image_size, width))
    return nn.Sequential(OrderedDict(body=body, head=nn.Linear(width, ways)))


scalar = few_shot(lambda width: Scaled())
gru = few_shot(lambda width: Recurrent(nn.GRU, width))
lstm = few_shot(lambda width: Recurrent(nn.LSTM, width))
attention = few_shot(lambda width: Attending(exact=False))
exact_attention = few_shot(lambda width: Attending(exact=True))
bag = few_shot(lambda width: Bag(width, nn.EmbeddingBag))
embedding = few_shot(lambda width: Bag(width, nn.Embedding))
max_norm = few_shot(lambda width: Bag(width, nn.Embedding, 1.0))
rare_max_norm = few_shot(lambda width: Bag(width, nn.Embedding, 50.0))
writes_weight = few_shot(lambda width: Writing("weight"))
writes_buffer = few_shot(lambda width: Writing("buffer"))

plain = function(lambda h: h)
layer_norm = few_shot(nn.LayerNorm)
group_norm = few_shot(lambda width: nn.GroupNorm(2, width))
mean_of_record = function(lambda h: h - h.mean(1, keepdim=True))
batch_norm = few_shot(lambda width: nn.BatchNorm1d(width, track_running_stats=False))
tracking_batch_norm = few_shot(nn.BatchNorm1d)


rarely_drawn = function(lambda h: h if random.random() < 0.001 else 2 * h)
drawn_by_numpy = function(lambda h: h + torch.from_numpy(np.random.rand(h.shape[1]).astype("float32")))  # noqa: NPY002
# What is done whenever `overheard` computes.
HEARD = []


def _overheard(features):
    for hear in HEARD:
        hear()
    return features


overheard = function(_overheard)
infinite = function(lambda h: h / 0.0)
detached = function(lambda h: h.detach())


class Reseeding(nn.Module):
    """Draws, and hides it."""

    def forward(self, features):
        with torch.random.fork_rng(devices=[]):
            torch.seed()
            return nn.functional.dropout(features)


reseeding = few_shot(lambda width: Reseeding())


class Unlike(nn.Module):
    """Its forward is not its head after its body."""

    def __init__(self, channels, image_size, ways, width):
        super().__init__()
        self.body = nn.Sequential(*features_of(channels, image_size, width))
        self.head = nn.Linear(width, ways)

    def forward(self, images):
        return self.head(torch.tanh(self.body(images)))


class Mapped(Unlike):
    def forward(self, images):
        return {"logits": self.head(self.body(images))}


class MappedBody(Unlike):
    def __init__(self, *given):
        super().__init__(*given)
        self.body.append(Layer(lambda features: {"features": features}))

    def forward(self, images):
        return self.head(self.body(images)["features"])


class Tied(nn.Module):
    """One matrix in two places."""

    def __init__(self, width):
        super().__init__()
        self.first, self.second = nn.Linear(width, width), nn.Linear(width, width)
        self.second.weight = self.first.weight

    def forward(self, features):
        return self.second(self.first(features))


tied = few_shot(Tied)
hidden_layer = few_shot(lambda width: nn.Linear(width, width))


def unlike(*, channels, image_size, ways, width, norm):
    return Unlike(channels, image_size, ways, width)


def mapped(*, channels, image_size, ways, width, norm):
    return Mapped(channels, image_size, ways, width)


def body_of_a_mapping(*, channels, image_size, ways, width, norm):
    return MappedBody(channels, image_size, ways, width)


def frozen_layer(**given):
    network = hidden_layer(**given)
    network.body[2].requires_grad_(False)
    return network


def frozen_body(**given):
    network = hidden_layer(**given)
    network.body.requires_grad_(False)
    return network


def frozen_entirely(**given):
    return hidden_layer(**given).requires_grad_(False)


def numpy_weights(**given):
    network = plain(**given)
    network.head.bias.data = torch.from_numpy(np.random.rand(given["ways"]).astype("float32"))  # noqa: NPY002
    return network


def python_weights(**given):
    network = plain(**given)
    network.head.bias.data = torch.tensor([random.random() for _ in range(given["ways"])])
    return network


def own_weights(**given):
    network = plain(**given)
    network.body[2].bias.data = torch.from_numpy(np.random.default_rng().random(given["width"]).astype("float32"))
    return network


def seven_logits(*, channels, image_size, ways, width, norm):
    return plain(channels=channels, image_size=image_size, ways=7, width=width, norm=norm)


def wrong_size(*, channels, image_size, ways, width, norm):
    return plain(channels=channels, image_size=2 * image_size, ways=ways, width=width, norm=norm)


def two_results(*, channels, image_size, ways, width, norm):
    network = plain(channels=channels, image_size=image_size, ways=ways, width=width, norm=norm)
    return nn.Sequential(network, Layer(lambda logits: (logits, logits)))


def unbuildable(*, channels, image_size, ways, width, norm):
    raise ValueError(f"no network of width {width}\nat all")
