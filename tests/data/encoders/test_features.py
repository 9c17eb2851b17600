"""Features of a task: each image's own, in its place, computed once, in the digest of what they were computed from."""

import dataclasses

import numpy as np
import pytest
import torch

from dpfedmeta.core.errors import InputError
from dpfedmeta.data.dataset import open_dataset
from dpfedmeta.data.encoders import features
from dpfedmeta.data.encoders.encoding import encoder_network, encoding_of
from dpfedmeta.data.encoders.features import encoded_images, encoded_pools
from dpfedmeta.data.episodes.episode import choose_episode
from dpfedmeta.data.episodes.shape import EpisodeShape
from dpfedmeta.data.storage.decoded_cache import SPLITS

OWN = "tests.data.encoders.tiny_encoder"
SHAPE = EpisodeShape(ways=3, shots=2, queries=2)


@pytest.fixture(scope="module")
def encoding():
    return encoding_of(f"{OWN}:tiny", None, 16)


@pytest.fixture(scope="module")
def both(tiny_task_file, tiny_strokes, encoding):
    return tiny_strokes, open_dataset(str(tiny_task_file), encoding=encoding)


@pytest.fixture(autouse=True)
def in_this_process(monkeypatch):
    monkeypatch.setattr(features, "available_cores", lambda: 1)


@pytest.mark.parametrize("split", SPLITS)
def test_an_episode_holds_the_features_of_the_images_that_are_drawn(both, encoding, split):
    """With rotations too, which make classes of their own in training."""
    images, encoded = (getattr(dataset, split) for dataset in both)
    plain, found = (choose_episode(pool, np.random.default_rng(4), SHAPE).episode() for pool in (images, encoded))
    pixels = (plain.support_images * 255).round().to(torch.uint8).numpy()
    if images.mean:
        pytest.skip("standardised")
    expected = encoded_images(encoder_network(encoding), pixels, encoding)
    np.testing.assert_allclose(found.support_images.numpy(), expected, rtol=1e-4, atol=1e-5)
    assert torch.equal(found.support_labels, plain.support_labels)


def test_features_of_an_image_do_not_depend_on_its_company(both, encoding):
    network, pool = encoder_network(encoding), both[0].train
    images = np.asarray(pool.images[:40])
    together = encoded_images(network, images, encoding)
    alone = np.concatenate([encoded_images(network, images[place : place + 1], encoding) for place in (0, 17, 39)])
    np.testing.assert_allclose(together[[0, 17, 39]], alone, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("count", [1, 31, 32, 33])
def test_every_pass_has_as_many_images(both, encoding, count):
    """Last bits follow from their number: a real client's few images would have other features than a simulation's."""
    network, images = encoder_network(encoding), np.asarray(both[0].train.images[:count])
    seen = []
    found = encoded_images(lambda batch: seen.append(len(batch)) or network(batch), images, encoding)
    assert set(seen) == {32}
    assert found.shape == (count, 64)


@pytest.mark.parametrize(("size", "together"), [(160, 32), (161, 31), (320, 8), (1024, 1)])
def test_large_images_go_through_in_fewer_at_a_time(both, size, together):
    """A server's plan may ask a client for 1,024 pixels a side: that costs it time, and no more memory than 160."""
    encoding, seen = encoding_of(f"{OWN}:tiny", None, size), []
    images = np.asarray(both[0].train.images[:2])
    encoded_images(lambda batch: seen.append(len(batch)) or torch.zeros(len(batch), 64), images, encoding)
    assert set(seen) == {together}


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("a_dictionary", r"returns dict, expected a tensor \[n, 64\]"),
        ("larger_images", r"fails on images \[.*, 3, 16, 16\] \(RuntimeError"),
        ("the_same", r"gives all images the same features"),
    ],
)
def test_what_a_network_does_wrong_is_one_line(both, tmp_path, name, said):
    pools = {split: getattr(both[0], split) for split in SPLITS}
    with pytest.raises(InputError, match=said) as caught:
        encoded_pools(pools, encoding_of(f"{OWN}:{name}", None, 16), tmp_path)
    assert "\n" not in str(caught.value)


def test_an_encoder_that_mixes_images_is_refused(both, tmp_path):
    mixed = encoding_of(f"{OWN}:moves", None, 16)
    pools = {split: getattr(both[0], split) for split in SPLITS}
    with pytest.raises(InputError, match="depend on the other images of a batch"):
        encoded_pools(pools, mixed, tmp_path)


class Pooled(torch.nn.Module):
    """Features of 2 x 2 pixels, changed by `rule`."""

    def __init__(self, rule):
        super().__init__()
        self.pool, self.rule = torch.nn.AdaptiveAvgPool2d(4), rule

    def forward(self, images):
        return self.rule(self.pool(images).flatten(1)[:, :64].repeat(1, 2)[:, :64])


def centred_from(number):
    """By the mean of the batch, where it has so many different images or more."""
    return lambda found: found - found.mean(0) if len(torch.unique(found, dim=0)) >= number else found


class Seen:
    """By the mean of all that it has seen, which is no state that a network tells of."""

    mean = 0.0

    def __call__(self, found):
        self.mean = 0.9 * self.mean + 0.1 * found.mean(0)
        return found - self.mean


@pytest.mark.parametrize("rule", [centred_from(2), centred_from(5), centred_from(20), Seen()])
def test_an_encoder_that_mixes_images_is_refused_from_whatever_number_on(both, tmp_path, monkeypatch, rule):
    """A look at three images, of which the last fills the pass, does not tell."""
    network = Pooled(rule)
    monkeypatch.setattr(features, "_network", lambda _: network)
    pools = {split: getattr(both[0], split) for split in SPLITS}
    with pytest.raises(InputError, match="depend on the other images of a batch"):
        encoded_pools(pools, encoding_of(f"{OWN}:tiny", None, 16), tmp_path)


@pytest.mark.parametrize("where", ["parameter", "buffer", "attribute"])
def test_weights_that_a_factory_loads_itself_are_known(both, encoding, tmp_path, monkeypatch, where):
    """No setting names their file, and no source holds them."""

    class Loaded(torch.nn.Module):
        def __init__(self, value):
            super().__init__()
            self.pool, kept = torch.nn.AdaptiveAvgPool2d(8), torch.full((64,), value)
            if where == "parameter":
                self.kept = torch.nn.Parameter(kept)
            elif where == "buffer":
                self.register_buffer("kept", kept.to(torch.bfloat16))
            else:
                self.held = [kept]

        def forward(self, images):
            kept = self.held[0] if where == "attribute" else self.kept
            return self.pool(images).mean(1).flatten(1) * kept

    pools, found = {split: getattr(both[0], split) for split in SPLITS}, []
    for value in (1.0, 2.0, 1.0):
        network = Loaded(value).requires_grad_(False)
        monkeypatch.setattr(features, "_network", lambda _, made=network: made)
        found.append(encoded_pools(pools, encoding, tmp_path)["train"])
    first, other, again = found
    assert first == again
    assert first.path != other.path
    np.testing.assert_allclose(2 * np.asarray(first.images), np.asarray(other.images), rtol=1e-6)
    # What is told to others is of weights alone: features have other last bits elsewhere.
    assert (first.made_from != other.made_from) is (where != "attribute")


def test_they_are_computed_once(both, encoding, tmp_path, monkeypatch):
    pools = {split: getattr(both[0], split) for split in SPLITS}
    first = encoded_pools(pools, encoding, tmp_path)
    monkeypatch.setattr(features, "_features", lambda *_: pytest.fail("computed again"))
    again = encoded_pools(pools, encoding, tmp_path)
    assert again == first


@pytest.mark.parametrize("what", ["images", "encoder", "size", "rotations"])
def test_whatever_features_depend_on_has_a_file_of_its_own(both, encoding, tmp_path, what):
    pools = {split: getattr(both[0], split) for split in SPLITS}
    before = encoded_pools(pools, encoding, tmp_path)["train"]
    other = encoding
    if what == "images":
        path = tmp_path / "others.npy"
        np.save(path, 255 - np.asarray(pools["train"].images))
        pools = {split: dataclasses.replace(pool, path=path) for split, pool in pools.items()}
    elif what == "rotations":
        pools = {**pools, "train": dataclasses.replace(pools["train"], rotations=1)}
    else:
        changed = {"encoder": {"card": dataclasses.replace(encoding.card, digest="0" * 64)}, "size": {"size": 20}}
        other = dataclasses.replace(encoding, **changed[what])
        monkeypatched = encoder_network(encoding)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(features, "_network", lambda _: monkeypatched)
            after = encoded_pools(pools, other, tmp_path)["train"]
        assert after.path != before.path
        assert after.digest() != before.digest()
        return
    after = encoded_pools(pools, other, tmp_path)["train"]
    assert after.path != before.path
    assert after.digest() != before.digest()


@pytest.mark.parametrize(("name", "said"), [("wrong_length", r"found \[3\]"), ("not_finite", "not finite")])
def test_features_that_are_none_are_refused_and_leave_no_file(both, tmp_path, name, said):
    pools = {split: getattr(both[0], split) for split in SPLITS}
    with pytest.raises(InputError, match=said):
        encoded_pools(pools, encoding_of(f"{OWN}:{name}", None, 16), tmp_path)
    assert not list(tmp_path.rglob("*.npy"))


def test_small_images_grow_and_large_ones_shrink_to_the_size_of_the_encoder(encoding):
    network = encoder_network(encoding)
    flat = np.full((1, 3, 40, 40), 77, dtype=np.uint8)
    small = np.full((1, 1, 8, 8), 77, dtype=np.uint8)
    np.testing.assert_allclose(
        encoded_images(network, flat, encoding), encoded_images(network, small, encoding), rtol=1e-4, atol=1e-5
    )


def test_images_grow_by_bicubic_interpolation_and_keep_to_their_range(encoding):
    """An encoder that returns its pixels."""
    sharp = np.zeros((1, 3, 4, 4), dtype=np.uint8)
    sharp[..., 2:] = 255
    pixels = dataclasses.replace(encoding, size=8, card=dataclasses.replace(encoding.card, features=3 * 8 * 8))
    found = encoded_images(torch.nn.Flatten(), sharp, pixels).reshape(3, 8, 8)
    assert (found.min(), found.max()) == (0.0, 1.0)
    np.testing.assert_allclose(found[0, 4], [0, 0, 0, 0.2265625, 0.7734375, 1, 1, 1], atol=1e-6)


@pytest.mark.parametrize(("side", "size"), [(8, 4), (16, 4), (12, 4), (9, 4)])
def test_images_shrink_to_means_of_what_lies_behind_each_pixel(encoding, side, size):
    """Without them stripes of one pixel would be black or white, as the places fall that are looked at."""
    stripes = np.zeros((1, 3, side, side), dtype=np.uint8)
    stripes[..., ::2] = 255
    pixels = dataclasses.replace(encoding, size=size, card=dataclasses.replace(encoding.card, features=3 * size * size))
    found = encoded_images(torch.nn.Flatten(), stripes, pixels).reshape(3, size, size)
    assert np.abs(found[..., 1:-1] - 0.5).max() < 0.1
    turned = encoded_images(torch.nn.Flatten(), np.rot90(stripes, axes=(2, 3)), pixels).reshape(3, size, size)
    np.testing.assert_allclose(turned, np.rot90(found, axes=(1, 2)), atol=1e-5)
