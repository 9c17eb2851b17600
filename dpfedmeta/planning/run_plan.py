"""Plan of a run: every constant, the promised guarantees, and the reasons to refuse it, derived from settings."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import nn

from dpfedmeta.accounting.events.events import Earlier
from dpfedmeta.accounting.events.guarantee import Guarantee
from dpfedmeta.accounting.observers.four_guarantees import guarantees, running_grid
from dpfedmeta.accounting.privacy_plan.privacy_plan import PrivacyPlan
from dpfedmeta.config.settings import Settings
from dpfedmeta.core.errors import InputError
from dpfedmeta.core.plugins import plugin_registry as members
from dpfedmeta.core.plugins.user_code import raised
from dpfedmeta.data.episodes.shape import EpisodeShape, WholeShape
from dpfedmeta.data.task import Task
from dpfedmeta.learning.meta.adaptation import PLAIN, Adaptation
from dpfedmeta.learning.meta.algorithm import ClientAlgorithm, message_form
from dpfedmeta.learning.meta.row_layouts import episode_shape
from dpfedmeta.learning.meta.whole_clients import WholeClients
from dpfedmeta.learning.models.registry import (
    build_network,
    check_has_head,
    check_records_uncoupled,
    convolved_channels,
)
from dpfedmeta.learning.models.spec import HEAD, NETWORKS, NetworkSpec
from dpfedmeta.learning.models.trainable import check_head_is_free, check_parameters
from dpfedmeta.learning.models.weight_shapes import check_convolutions, check_memory
from dpfedmeta.learning.record_dp.per_example_gradients import per_record_engine
from dpfedmeta.learning.releases.micro_episodes import MicroEpisodes
from dpfedmeta.learning.server_step import Moments, Rule, Solver
from dpfedmeta.planning.client_spec import (
    algorithm_of,
    check_protocol,
    evaluation_adaptation,
    message_clip_ratio,
    network_spec,
    whole_shape,
)
from dpfedmeta.planning.network_trial.independence_test import check_uncoupled
from dpfedmeta.planning.network_trial.message_test import check_messages, trial_of
from dpfedmeta.planning.network_trial.pretraining_overlap import check_initial
from dpfedmeta.planning.network_trial.synthetic_clients import rehearsal_of
from dpfedmeta.planning.policy_from_settings import clip_policy, with_own_policy
from dpfedmeta.planning.privacy.solve import make_privacy
from dpfedmeta.privacy.clip_policies.policy_checks import check_answers
from dpfedmeta.privacy.clip_policy import ClipPolicy, moved_by_a_client, with_attachment
from dpfedmeta.privacy.mechanisms import Mechanism, check_mechanism, mechanism_of
from dpfedmeta.privacy.samplers import Sampler, sampler_of

_SETTING, _FOLDER = "server.optimizer", "dpfedmeta.learning.server_optimizers"


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A run, frozen before its first round.

    Attributes:
        settings: What the user gave.
        shape: A client's episode.
        network: The network.
        algorithm: What every client computes.
        evaluation: Adaptation on held-out classes.
        privacy: Every constant that an epsilon depends on.
        planned: The promise: four cells.
        own_policy: A clip policy of the caller's, in place of the settings'.
    """

    settings: Settings
    shape: EpisodeShape
    network: NetworkSpec
    algorithm: ClientAlgorithm
    evaluation: Adaptation
    privacy: PrivacyPlan
    planned: tuple[Guarantee, ...]
    own_policy: ClipPolicy[Any] | None = None

    @property
    def whole(self) -> WholeShape | None:
        """Public limits of clients that use all their records; None: their episodes have a fixed size."""
        return whole_shape(self.settings)

    @property
    def private(self) -> bool:
        """True if the plan has a client-level mechanism."""
        return self.privacy.noise_multiplier is not None

    @cached_property
    def running_grid(self) -> float:
        """Grid for the epsilons along the way; the promise itself is computed on its own."""
        return running_grid(self.privacy)

    @cached_property
    def message_clip_ratio(self) -> float | None:
        """C/C_q in stacked mode, where the server clips a message again; else None."""
        return message_clip_ratio(self.settings, self.algorithm, self.privacy.noise_mode)

    def message_bound(self, bound: float) -> float:
        """Return the largest norm by which one client moves the sum of a round at this clip bound."""
        return moved_by_a_client(bound, self.policy.attachment, self.message_clip_ratio)

    @property
    def shortened(self) -> bool:
        """True if privacy.client.limit ends the run before server.rounds."""
        return self.privacy.rounds < self.settings.server.rounds

    @property
    def message_noise(self) -> float:
        """Deviation of the noise that each client adds to its message, over its sensitivity."""
        return self.privacy.at(0).message_noise

    def extended(self, rounds: int) -> Plan:
        """The same with `rounds` rounds in all; its promise is that of all of them."""
        privacy = self.privacy.extended(rounds)
        return replace(self, privacy=privacy, planned=guarantees(privacy))

    def among_real_clients(self) -> Plan:
        """The same, where masks have to withstand a server that breaks the protocol; every epsilon stays."""
        secure = self.privacy.secure
        if secure is None:
            return self
        return replace(self, privacy=replace(self.privacy, secure=replace(secure, malicious=True)))

    def sampler(self, round_: int) -> Sampler:
        """Return the sampler that draws the cohort of this round."""
        return sampler_of(self.privacy.at(round_), self.privacy.max_participations)

    @cached_property
    def mechanism(self) -> Mechanism:
        """Mechanism that releases the sums."""
        return mechanism_of(self.privacy)

    @cached_property
    def rule(self) -> Rule:
        """Rule that turns the moments of releases into the server's step."""
        return rule_of(self.settings.server.optimizer)

    @cached_property
    def moves(self) -> bool:
        """True if releases move the model by a rule: all, or all after the first one."""
        return self.solver is None or bool(getattr(self.algorithm, "solves_first", False))

    @cached_property
    def solver(self) -> Solver | None:
        """Server step that solves for the model; None: it moves by a rule."""
        return solver_of(self.settings.server.optimizer, self.algorithm, self.network)

    @cached_property
    def policy(self) -> ClipPolicy[Any]:
        """Clip policy, which sets the clip bound from earlier releases."""
        return clip_policy(self.settings, self.privacy) if self.own_policy is None else self.own_policy


def make_plan(
    settings: Settings,
    task: Task,
    own_policy: ClipPolicy[Any] | None = None,
    earlier: tuple[Earlier, ...] | None = None,
) -> Plan:
    """Check the settings, solve the noise, state the promise.

    Args:
        settings: What the user gave.
        task: The data set, without its images.
        own_policy: A clip policy of the caller's; clip.policy of the plan then says `own`.
        earlier: What privacy.spent_before stands for, where a ledger has it already; None: it is read.

    Raises:
        InputError: A value does not fit another one.
        RefusedPlan: A guarantee that is asked for would not hold.
    """
    if own_policy is not None:
        settings = with_own_policy(settings, own_policy)
    check_protocol(settings, task)
    privacy = make_privacy(settings, task, earlier=earlier)
    algorithm = algorithm_of(settings, task)
    if privacy.record is not None:
        algorithm = algorithm.with_noise(privacy.record)
    _check_chunk(settings, algorithm)
    network = network_spec(settings, task)
    evaluation = evaluation_adaptation(settings, algorithm)
    heads = "head" in (algorithm.adaptation.adapt, evaluation.adapt)
    _check_network(network, settings, algorithm, heads=heads)
    check_initial(settings, network, task)
    plan = Plan(
        settings=settings,
        shape=episode_shape(settings),
        network=network,
        algorithm=algorithm,
        evaluation=evaluation,
        privacy=privacy,
        planned=guarantees(privacy),
        own_policy=own_policy,
    )
    if ":" in settings.server.noise and not plan.private:
        raise InputError(
            f"server.noise = {settings.server.noise}: would never be called, since this run adds no noise "
            f"(clip.policy = {settings.clip.policy}); leave it out, or bound clients and give server.noise_multiplier"
        )
    check_mechanism(plan.mechanism, privacy)
    _ = plan.policy, plan.moves and plan.rule  # their own checks, before the first round
    if ":" in settings.clip.policy or own_policy is not None:
        learned = algorithm.learned(network, algorithm.initial(network, 0))
        sent = message_form(algorithm, learned)
        form, bounded = with_attachment(sent, plan.policy.attachment), bool(getattr(plan.policy, "bounded", True))
        check_answers(plan.policy, "clip.policy", form, bounded=bounded)
    rehearsal = rehearsal_of(settings, network, algorithm, private=plan.private)
    check_uncoupled(rehearsal)
    check_messages(trial_of(rehearsal, algorithm, plan.shape, settings.meta.method))
    return plan


def _check_network(spec: NetworkSpec, settings: Settings, algorithm: ClientAlgorithm, *, heads: bool) -> None:
    if spec.name in NETWORKS:
        check_memory(spec)
    network, trial = build_network(spec), algorithm.trial(spec)
    check_parameters(network, spec.name)
    if settings.record.enabled:
        check_records_uncoupled(network, spec, inside_micro_episodes=trial.apart)
    check_convolutions(spec, convolved_channels(network))
    if spec.precision == "bfloat16" and settings.record.enabled and settings.record.engine == "opacus":
        raise InputError(
            "record.engine = opacus: works only in float32; leave out run.precision, or use --record.engine auto"
        )
    if heads:
        check_has_head(network, spec.name)
    whole = isinstance(algorithm, WholeClients)
    if heads or whole or algorithm.adaptation.rule != PLAIN:
        check_head_is_free(network, spec.name)
    micro = isinstance(algorithm, MicroEpisodes) and algorithm.shape.ways != algorithm.client.ways
    if (whole or micro) and algorithm.adaptation.targets.masked:
        _check_no_rows(spec, settings, algorithm, whole=whole)
    division = algorithm.needs.division
    if division is not None and division.linear_head and not isinstance(network.get_submodule("head"), nn.Linear):
        where = "population.episodes = whole" if whole else "meta.divisions"
        raise InputError(f"{where}: model.name = {spec.name}: its head must be one torch.nn.Linear")


def _check_no_rows(spec: NetworkSpec, settings: Settings, algorithm: ClientAlgorithm, *, whole: bool) -> None:
    """Refuse to learn what belongs to single classes where whole clients, or micro-episodes, have fewer of them."""
    learned = algorithm.learned(spec, algorithm.initial(spec, 0))
    rows = [name for name in learned if name.rpartition("/")[2].startswith(HEAD)]
    if rows:
        where = "population.episodes = whole" if whole else f"record.micro_ways = {settings.record.micro_ways}"
        others = ", reptile" if whole else ""
        raise InputError(
            f"{where}: meta.method = {settings.meta.method} learns {', '.join(rows)} for a fixed number of classes; "
            f"use --meta.method maml, fomaml{others}, proto-maml or protonet"
            + ("" if whole else ", or --record.micro_ways null")
        )


def _check_chunk(settings: Settings, algorithm: ClientAlgorithm) -> None:
    """Refuse a number of clients side by side where it would change nothing."""
    chunk = settings.run.chunk or 1
    if chunk > 1 and (algorithm.releases or algorithm.together(per_record_engine("auto"), "cpu", chunk) == 1):
        raise InputError(
            f"run.chunk = {chunk}: has no effect here (only meta-gradients without record-level privacy are computed "
            "for several clients at once); leave it out"
        )


def solver_of(name: str, algorithm: ClientAlgorithm, network: NetworkSpec) -> Solver | None:
    """The server step that `server.optimizer` names, where it solves for the model; None: it moves by a rule.

    Raises:
        InputError: There is none of this name, or clients send something else than it takes.
    """
    first = getattr(algorithm, "solves_first", False)
    member = members.find(_SETTING, "solve" if first else name, _FOLDER)
    if hasattr(member, "planned"):
        made: Solver = members.planned(_SETTING, name, member.planned, algorithm, network)
        members.check_protocol(_SETTING, name, made, "solved")
        return made
    if hasattr(algorithm, "form"):
        raise InputError(
            f"{_SETTING} = {name}: clients send what no step can follow, such as moments; use --server.optimizer solve"
        )
    return None


def rule_of(name: str) -> Rule:
    """The rule that `server.optimizer` names.

    Raises:
        InputError: There is none of this name, or it cannot be called with moments, or what it gives has another form.
    """
    rule = members.find(_SETTING, name, _FOLDER)
    if not callable(rule):
        raise InputError(f"{_SETTING} = {name}: expected a function of moments, got {type(rule).__name__}")
    sample = {"matrix": torch.ones(2, 3), "vector": torch.ones(2)}
    try:
        found = rule(Moments(first=sample, second=sample))
        forms = {key: tuple(value.shape) for key, value in found.items()}
    except (Exception, SystemExit) as error:  # the user's own code
        raise InputError(f"{_SETTING} = {name}: it failed in a trial with moments of ones ({raised(error)})") from error
    if forms != {key: tuple(value.shape) for key, value in sample.items()}:
        raise InputError(f"{_SETTING} = {name}: it returned other names or shapes than the moments have: {forms}")
    chosen: Rule = rule
    return chosen
