"""Micro-episodes of shared labels and of numbers to predict: parts keep what each record is labelled with."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from dpfedmeta.data.episodes.episode import Episode
from dpfedmeta.data.episodes.shape import EpisodeShape
from dpfedmeta.data.episodes.targets import TargetRange
from dpfedmeta.learning.meta.adaptation import Adaptation
from dpfedmeta.learning.record_dp.micro_episode_gradients import micro_episodes
from dpfedmeta.learning.releases.micro_episodes import MicroEpisodes
from dpfedmeta.learning.targets.classification import Classification
from dpfedmeta.learning.targets.regression import Regression

KINDS = {
    "shared": (Classification(shared=6), torch.tensor([4, 1])),
    "numbers": (Regression(range=TargetRange(centre=0, scale=1, lowest=-9, highest=99)), None),
}


def release(kind, ways):
    method = SimpleNamespace(adaptation=Adaptation(adapt="all", steps=1, lr=0.1, targets=kind))
    client = EpisodeShape(ways=ways, shots=4, queries=4)
    return MicroEpisodes(method=method, client=client, shape=EpisodeShape(ways=ways, shots=1, queries=1), noise=1.0)


def episode_of(spec, labels, seed):
    """Records that are the numbers of their labels, each with a further number of its own."""
    shape = spec.client
    own = [
        torch.randn(count, generator=torch.Generator().manual_seed(seed + count)) if labels is None
        else labels.repeat_interleave(count // shape.ways)
        for count in (shape.support_records, shape.query_records)
    ]  # fmt: skip
    images = [torch.stack([each.float(), torch.arange(len(each)).float()], 1) for each in own]
    return Episode(support_images=images[0], support_labels=own[0], query_images=images[1], query_labels=own[1])


@pytest.mark.parametrize("which", KINDS)
def test_every_record_keeps_its_label_and_is_in_one_part(which):
    kind, labels = KINDS[which]
    spec = release(kind, 1 if labels is None else 2)
    episodes = [episode_of(spec, labels, seed) for seed in (1, 2)]
    assert all(spec.fits(each) for each in episodes)
    parts = micro_episodes(episodes, spec)
    assert len(parts.support_labels) == 2 * len(spec.slots())
    for images, own in ((parts.support_images, parts.support_labels), (parts.query_images, parts.query_labels)):
        assert torch.equal(images[..., 0], own.float())
    seen = torch.cat([parts.support_images.flatten(0, 1), parts.query_images.flatten(0, 1)])
    held = torch.cat([image for each in episodes for image in (each.support_images, each.query_images)])
    assert sorted(map(tuple, seen.tolist())) == sorted(map(tuple, held.tolist()))


@pytest.mark.parametrize("part", ["support", "query"])
@pytest.mark.parametrize("which", KINDS)
def test_another_label_of_one_record_moves_its_own_part_alone(which, part):
    """Whatever the label is: were the whole client left out for it, one record would move every part."""
    kind, labels = KINDS[which]
    spec = release(kind, 1 if labels is None else 2)
    own = episode_of(spec, labels, 1)
    before = micro_episodes([own], spec)
    for record in range(len(getattr(own, f"{part}_labels"))):
        changed = getattr(own, f"{part}_labels").clone()
        changed[record] = 5
        other = replace(own, **{f"{part}_labels": changed})
        assert spec.fits(other)
        after = micro_episodes([other], spec)
        same = [
            torch.equal(getattr(before, name)[place], getattr(after, name)[place])
            for place in range(len(before.support_labels))
            for name in ("support_labels", "query_labels")
        ]
        assert same.count(False) == 1
