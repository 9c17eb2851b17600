"""LoRA on a small transformer in a training loop of one's own, with a guarantee for whole clients.

The transformer has random weights that stay as they are; clients learn low-rank changes of its attention (LoRA) and a
new output layer. Only these are clipped, added up and released. `round.map` is all that differs from a loop without
privacy. Pure PyTorch; put your own pretrained model in the place of `Transformer`.

    python examples/lora_own_loop.py
    dpfedmeta account --verify runs/lora
"""

from __future__ import annotations

from os import PathLike

import torch
from torch import Tensor, nn
from torch.func import functional_call

import dpfedmeta as dp

CLIENTS, COHORT, RECORDS = 2_000, 200, 8
WORDS, LENGTH, WIDTH, RANK = 16, 6, 32, 2
Model = dict[str, Tensor]


class LowRank(nn.Module):
    """A frozen linear layer with a low-rank change that is learned; it begins at zero."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.layer = layer
        self.down = nn.Parameter(torch.randn(RANK, layer.in_features) / layer.in_features**0.5)
        self.up = nn.Parameter(torch.zeros(layer.out_features, RANK))

    def forward(self, inputs: Tensor) -> Tensor:
        """The layer, changed."""
        out: Tensor = self.layer(inputs) + inputs @ self.down.T @ self.up.T
        return out


class Transformer(nn.Module):
    """One block of self-attention over words and their places; the mean of its outputs is classified."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.query, self.key, self.value = (LowRank(nn.Linear(WIDTH, WIDTH)) for _ in range(3))
        self.feed = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 2 * WIDTH), nn.GELU())
        self.head = nn.Linear(2 * WIDTH, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits of each sequence."""
        inputs = self.words(tokens) + self.places.weight
        looked = nn.functional.scaled_dot_product_attention(self.query(inputs), self.key(inputs), self.value(inputs))
        logits: Tensor = self.head(self.feed(inputs + looked).mean(1))
        return logits


def records_of(client: int) -> tuple[Tensor, Tensor]:
    """One client's own sequences, and whether they hold more of the first half of the words."""
    generator = torch.Generator().manual_seed(client)
    tokens = torch.randint(WORDS, (RECORDS, LENGTH), generator=generator)
    return tokens, ((tokens < WORDS // 2).sum(1) > LENGTH // 2).long()


def main(run_dir: str | PathLike[str] = "runs/lora", rounds: int = 40) -> float:
    """Train, and return the accuracy on clients that no round asks."""
    torch.manual_seed(0)
    network = Transformer()
    names = [name for name, _ in network.named_parameters() if name.endswith((".down", ".up")) or "head" in name]
    weights = {name: value.detach() for name, value in network.named_parameters()}
    model: Model = {name: weights[name] for name in names}

    def local_update(model: Model, client: int) -> Model:
        leaves = {name: value.clone().requires_grad_() for name, value in model.items()}
        tokens, labels = records_of(client)
        loss = nn.functional.cross_entropy(functional_call(network, {**weights, **leaves}, (tokens,)), labels)
        return dict(zip(names, torch.autograd.grad(-loss, [leaves[name] for name in names]), strict=True))

    with dp.PrivateRounds(
        clients=CLIENTS,
        cohort=COHORT,
        rounds=rounds,
        promise=dp.Promise(epsilon=4.0, delta=1e-5),
        clip=dp.clip.Constant(initial=0.5),
        like=model,
        run_dir=run_dir,
    ) as private:
        learned, whole = (sum(value.numel() for value in each.values()) for each in (model, weights))
        print(f"{learned:,} of {whole:,} numbers are learned")
        print(private.guarantees)
        private.check_update(local_update(model, CLIENTS))
        for round_ in private:
            round_.map(local_update, model)
            mean = round_.release()
            model = {name: model[name] + 2.0 * mean[name] for name in names}
    tokens, labels = (torch.cat(each) for each in zip(*map(records_of, range(CLIENTS, CLIENTS + 200)), strict=True))
    with torch.no_grad():
        logits = functional_call(network, {**weights, **model}, (tokens,))
    accuracy = float((logits.argmax(1) == labels).float().mean())
    print(f"{private.released} rounds: accuracy {accuracy:.1%}")
    return accuracy


if __name__ == "__main__":
    main()
