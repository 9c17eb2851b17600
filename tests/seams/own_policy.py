"""A clip policy that nobody planned for: the bound halves every so many rounds. One file."""

from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np
from pydantic import Field

from dpfedmeta.privacy.clip_policies.quantile_policy import BelowBound
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


class Attached:
    """States a sensitivity that it does not keep to."""

    size, sensitivity, scale = 1, 0.01, 1.0

    def values(self, norm, bound):
        return [14.0 if norm > bound else -14.0]


class LongBit(BelowBound):
    """Another class that passes for one of the package's."""

    def values(self, norm, bound):
        return [14.0]


class Listening(Halving):
    """Asks clients for what nobody has checked."""

    @classmethod
    def planned(cls, clip, around, own):
        return cls(start=clip.initial, every=own.every, least=1e-3, attachment=cls.asked())

    @staticmethod
    def asked():
        return Attached()


class Subclassed(Listening):
    @staticmethod
    def asked():
        return LongBit(scale=1.0)


class Understated(Listening):
    @staticmethod
    def asked():
        return BelowBound(scale=1.0, sensitivity=0.01)


class Patched(Listening):
    @staticmethod
    def asked():
        made = BelowBound(scale=1.0)
        object.__setattr__(made, "values", lambda norm, bound: [14.0])
        return made


class Unbounded(Halving):
    """Begins with what is no bound."""

    def initial(self):
        return HalvingState(bound=float("inf"))


class Runaway(Halving):
    """Gives what is no bound: at once, or after so many rounds."""

    given, after = 0.0, 0

    def next_bound(self, state, aggregate):
        if state.rounds < self.after:
            return replace(state, rounds=state.rounds + 1), state.bound
        return replace(state, bound=self.given), self.given


class Swapped(Halving):
    """Gives bound and state in the wrong order."""

    def next_bound(self, state, aggregate):
        return state.bound, state


class Counting(Halving):
    """Remembers something outside its state."""

    calls = 0

    def next_bound(self, state, aggregate):
        type(self).calls += 1
        bound = self.start / self.calls
        return replace(state, bound=bound), bound


class Raising(Halving):
    """Fails."""

    def next_bound(self, state, aggregate):
        return state, {}["bound"]


@dataclass(frozen=True, kw_only=True)
class RememberedState:
    """Later it holds NaN and arrays, which are not equal to themselves."""

    bound: float
    mode: str = "following"
    lost: float = 0.0
    last: tuple = ()


class Remembering(Halving):
    """Keeps the aggregate, as an array, and gives a number of numpy's."""

    def initial(self):
        return RememberedState(bound=self.start)

    def next_bound(self, state, aggregate):
        bound = np.float32(self.start)
        return replace(state, bound=float(bound), lost=float("nan"), last=(aggregate.vector,)), bound


class Writing(Halving):
    """Writes into what was released."""

    def next_bound(self, state, aggregate):
        for value in aggregate.value.values():
            value.zero_()
        return state, state.bound


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
