"""Adaptation of a client and the divisions of its records, as values and from the settings. Needs no PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Literal, Protocol

from dpfedmeta.config.settings import Settings
from dpfedmeta.core.errors import InputError
from dpfedmeta.data.episodes.shape import EpisodeShape
from dpfedmeta.learning.meta.target_kind import Balance, TargetKind
from dpfedmeta.learning.targets.classification import OWN_CLASSES

if TYPE_CHECKING:
    from torch import Tensor

    from dpfedmeta.core.params import Params
    from dpfedmeta.data.episodes.episode import Episode

Adapts = Literal["all", "head"]
Order = Literal[1, 2]


class InnerRule(Protocol):
    """Changes that an algorithm makes to the inner loop; a picklable value.

    It may have `direction` besides, a function of the gradient of a step, by the names of parameters: what the step
    takes in its place (clipped, its sign).
    """

    def network(self, weights: Mapping[str, Tensor]) -> Params:
        """Those weights that belong to the network: an algorithm may learn others besides."""
        ...

    def rates(self, weights: Mapping[str, Tensor], lr: float) -> float | Params:
        """The step size, one for all or one for each parameter that adapts."""
        ...

    def start(self, head: Params, features: Callable[[], Tensor], labels: Tensor, ways: int) -> Params:
        """theta_0 of the head, from the support set if it likes; `features` passes it through the body."""
        ...


@dataclass(frozen=True)
class PlainRule:
    """Every step at one rate, from the learned initialisation (Finn et al. 2017, https://arxiv.org/abs/1703.03400)."""

    def network(self, weights: Mapping[str, Tensor]) -> Params:
        """All of them."""
        return dict(weights)

    def rates(self, weights: Mapping[str, Tensor], lr: float) -> float | Params:
        """Return `lr`: one step size for all parameters."""
        return lr

    def start(self, head: Params, features: Callable[[], Tensor], labels: Tensor, ways: int) -> Params:
        """Return the head as it was learned."""
        return head


PLAIN = PlainRule()


@dataclass(frozen=True, kw_only=True)
class Adaptation:
    """Inner loop of a client: parameters that adapt, number of steps, step size and rule.

    Attributes:
        adapt: All parameters, or the head only.
        steps: K, the number of gradient steps.
        lr: Step size of the mean support loss.
        rule: Changes that the algorithm makes to the steps.
        targets: Kind of the targets: the loss, and what outputs mean.
        balance: Losses are means over records, or over classes where these differ in size.
    """

    adapt: Adapts
    steps: int
    lr: float
    rule: InnerRule = PLAIN
    targets: TargetKind = OWN_CLASSES
    balance: Balance = "records"

    @property
    def one_body(self) -> bool:
        """True if all clients share the body, so that one call computes several.

        Convolutions that adapt differ from client to client; one call could compute them only as many small ones.
        """
        return self.adapt == "head"

    @property
    def unadapted(self) -> Adaptation:
        """The model as it was learned. A rule in closed form begins with what it ends with, and says what is before."""
        return replace(self, steps=0, rule=getattr(self.rule, "unadapted", self.rule))

    def as_json(self) -> dict[str, object]:
        """For files."""
        return {"adapt": self.adapt, "steps": self.steps, "lr": self.lr}


@dataclass(frozen=True, kw_only=True)
class Divisions:
    """Number and support size of the divisions of a client's records, or of each micro-episode's.

    Attributes:
        count: S, the number of divisions.
        shots: Support records per class in each division; the other records of the client, or of the micro-episode, are
            the query set.
    """

    count: int
    shots: int
    linear_head: ClassVar[bool] = True

    @classmethod
    def planned(cls, settings: Settings, shape: EpisodeShape) -> Divisions | None:
        """Those of what holds as many records as an episode of this shape; None: it is divided as it stands, once.

        Raises:
            InputError: A support set would leave no query record.
        """
        count, shots = settings.meta.divisions, settings.meta.division_shots
        if count == 1 and shots is None:
            return None
        held, shots = shape.shots + shape.queries, shots or shape.shots
        if shots >= held:
            raise InputError(
                f"meta.division_shots = {shots}: a client (or micro-episode) holds {held} records of each class, and "
                f"at least one must be left for the query set; give at most {held - 1}"
            )
        # A window that moves round has no more than `held` places.
        return cls(count=min(count, held), shots=shots)

    def fits(self, episode: Episode) -> bool:
        """Return whether a client holds equally many records of each class, and more than a support set takes."""
        held = (episode.support_labels.bincount(minlength=1), episode.query_labels.bincount(minlength=1))
        ways = max(len(each) for each in held)
        counts = [sum(int(each[way]) for each in held if way < len(each)) for way in range(ways)]
        return len(set(counts)) == 1 and counts[0] > self.shots


def adaptation_of(
    settings: Settings, adapt: Adapts, rule: InnerRule = PLAIN, targets: TargetKind = OWN_CLASSES
) -> Adaptation:
    """The inner loop; `adapt` where the settings leave it open."""
    chosen = settings.meta
    # Equally many records of each class need no weights, and numbers have no classes.
    weighted = settings.population.episodes == "whole" and not targets.numbers
    balance = settings.task.balance if weighted else "records"
    return Adaptation(
        adapt=chosen.adapt or adapt,
        steps=chosen.steps,
        lr=chosen.lr,
        rule=rule,
        targets=targets,
        balance=balance,
    )


def first_order_only(settings: Settings) -> None:
    """Refuse second derivatives.

    Raises:
        InputError: They are asked for.
    """
    if settings.meta.order == 2:
        # Of a preset that learns the body behind a head that adapts, an update would be zero.
        body = settings.meta.learn == "body" and settings.meta.adapt != "all"
        others = " --meta.learn all --meta.adapt all --meta.lr 0.1" if body else ""
        raise InputError(
            f"meta.order = 2: {settings.meta.method} is a first-order method; use --meta.order 1{others}, or another "
            "method such as --meta.method maml"
        )


def whole_batches_only(settings: Settings) -> None:
    """Refuse mini-batches.

    Raises:
        InputError: They are asked for.
    """
    if settings.meta.batch is not None:
        raise InputError(
            f"meta.batch = {settings.meta.batch}: {settings.meta.method} uses all support records in a step; leave it "
            "out"
        )


def undivided_only(settings: Settings) -> None:
    """Refuse to divide a client's records again and again.

    Raises:
        InputError: It is asked for.
    """
    if settings.meta.divisions > 1 or settings.meta.division_shots is not None:
        raise InputError(
            f"meta.divisions = {settings.meta.divisions}: divisions share one pass through the body, so they need a "
            "meta-gradient that adapts the head (--meta.adapt head, and maml, fomaml or anil); or use "
            "--meta.divisions 1"
        )
