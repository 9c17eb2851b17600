"""A clip policy that nobody planned for: the bound halves every so many rounds. One file."""

from dataclasses import dataclass, replace
from typing import Annotated

from pydantic import Field

from dpfedmeta.privacy.clip_policy import clip_limits


@dataclass(frozen=True, kw_only=True)
class HalvingState:
    bound: float
    rounds: int = 0
    mode: str = "following"


@dataclass(frozen=True, kw_only=True)
class Halving:
    start: float
    every: int
    least: float
    attachment: None = None

    @dataclass(frozen=True, kw_only=True)
    class Settings:
        every: Annotated[int, Field(ge=1)] = 2

    @classmethod
    def planned(cls, clip, around, own):
        return cls(start=clip.initial, every=own.every, least=clip_limits(clip)[0])

    def initial(self):
        return HalvingState(bound=self.start)

    def next_bound(self, state, aggregate):
        rounds = state.rounds + 1
        bound = max(state.bound / 2, self.least) if rounds % self.every == 0 else state.bound
        return replace(state, rounds=rounds, bound=bound), bound


class Forgetful:
    """Lacks `next_bound`."""

    attachment = None

    @classmethod
    def planned(cls, clip, around):
        return cls()

    def initial(self):
        return HalvingState(bound=1.0)


class Deaf:
    """Has settings, and does not take them."""

    Settings = Halving.Settings

    @classmethod
    def planned(cls, clip, around):
        return Halving(start=clip.initial, every=2, least=clip_limits(clip)[0])


class Wordless(Halving):
    """Its state does not say what it does."""

    def initial(self):
        return WordlessState(bound=1.0)


@dataclass(frozen=True, kw_only=True)
class WordlessState:
    bound: float
