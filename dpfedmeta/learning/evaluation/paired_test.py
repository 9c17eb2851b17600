"""Two models on the same episodes: the difference, episode by episode, and whether it is one."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.stats import t

from dpfedmeta.core.errors import InputError
from dpfedmeta.data.episodes.episode import Episode


@dataclass(frozen=True, kw_only=True)
class KeptEpisodes:
    """The accuracy on each episode of an evaluation; of public classes, so it may be published.

    Attributes:
        digest: Of all images and labels of the episodes in their order: equal digests are the same episodes.
        seeds: That they were drawn with.
        accuracies: In [0, 1], in the order of the episodes.
        what: Size of the episodes in words.
        protocol: What the accuracies mean; those of two protocols are not compared.
    """

    digest: str
    seeds: tuple[int, ...]
    accuracies: tuple[float, ...]
    what: str = ""
    protocol: str = ""

    @classmethod
    def of(cls, what: str, protocol: str, content: Mapping[str, Any]) -> KeptEpisodes | None:
        """Read episodes that `as_json` wrote; None for evaluations of earlier versions or without episodes."""
        if "episodes_digest" not in content:
            return None
        return cls(
            what=what,
            protocol=protocol,
            digest=str(content["episodes_digest"]),
            seeds=tuple(map(int, content["episode_seeds"])),
            accuracies=tuple(map(float, content["episodes"])),
        )

    def as_json(self) -> dict[str, object]:
        """Keys beside the mean that they make."""
        return {
            "episodes": list(self.accuracies),
            "episode_seeds": list(self.seeds),
            "episodes_digest": self.digest,
        }


@dataclass(frozen=True, kw_only=True)
class PairedDifference:
    """Mean difference of two models on the same episodes.

    The interval is Student's for the mean of the differences (paired t): it holds what the draw of episodes can do to
    these two models, not what another seed of training could do.

    Attributes:
        mean: Of the first minus the second, in accuracies.
        ci95: Half the width of its 95% interval.
        episodes: How many.
    """

    mean: float
    ci95: float
    episodes: int

    @classmethod
    def of(cls, first: Sequence[float], second: Sequence[float]) -> PairedDifference:
        """Compute the paired difference from accuracies on the same episodes, in the same order; at least 2.

        Raises:
            InputError: The numbers of episodes differ, or are below 2.
        """
        count = len(first)
        if count != len(second) or count < 2:
            raise InputError(f"{count} and {len(second)} episodes: only the same ones, at least 2, can be compared")
        difference = np.asarray(first, dtype=np.float64) - np.asarray(second, dtype=np.float64)
        deviation = float(np.std(difference, ddof=1))
        spread = float(t.ppf(0.975, count - 1)) * deviation / math.sqrt(count)
        return cls(mean=float(difference.mean()), ci95=spread, episodes=count)

    @property
    def distinguishable(self) -> bool:
        """True if the confidence interval excludes zero."""
        return abs(self.mean) > self.ci95

    def __str__(self) -> str:
        low, high = 100 * (self.mean - self.ci95), 100 * (self.mean + self.ci95)
        words = "distinguishable" if self.distinguishable else "not distinguishable"
        return (
            f"{100 * self.mean:+.2f} points, 95% interval {low:+.2f} to {high:+.2f} (paired t, {self.episodes} "
            f"episodes): {words} from zero"
        )


def digest_of_episode(episode: Episode) -> bytes:
    """Return the digest of an episode's images and labels."""
    digest = hashlib.blake2b(digest_size=16)
    for part in (episode.support_images, episode.support_labels, episode.query_images, episode.query_labels):
        digest.update(str(tuple(part.shape)).encode())
        digest.update(part.contiguous().numpy().tobytes())
    return digest.digest()
