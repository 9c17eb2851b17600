"""Test before the first round of a method of the user's own: what it sends, and that this depends on data alone."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from dpfedmeta.core.errors import InputError
from dpfedmeta.core.params import Params, is_finite
from dpfedmeta.core.pydantic_errors import counted_words
from dpfedmeta.learning.algorithms.maml import sent_by
from dpfedmeta.learning.meta.algorithm import form_problem, message_form
from dpfedmeta.learning.meta.meta_gradients import rows
from dpfedmeta.planning.network_trial.forward_test import DrawsRandomNumbers, drawn_so_far
from dpfedmeta.planning.network_trial.synthetic_clients import Rehearsal, RehearsedClients

# Share of its length by which a client's message may differ where it is computed beside others (as in device_test).
_APART = 0.05


def check_sent(who: str, algorithm: Any, learned: Params, sent: Iterable[object], clients: int) -> list[Params]:
    """Return messages in the order of their form, or refuse what would count as zero.

    Raises:
        InputError: Says what differs.
    """
    form: Params = message_form(algorithm, learned)
    found: list[Any] = list(sent)
    if len(found) != clients:
        sent_words = f"{counted_words(len(found), 'message')} for {counted_words(clients, 'client')}"
        raise InputError(f"{who} sent {sent_words}, expected one each")
    for message in found:
        if problem := form_problem(message, form, algorithm.parts):
            raise InputError(f"{who} {problem}; every client's message would count as zero")
    return [{name: message[name] for name in form} for message in found]


def check_method(rehearsal: Rehearsal) -> None:
    """Refuse a method of the user's own whose messages cannot be used, or depend on more than a client's data.

    Raises:
        InputError: Says what it gives, draws or writes into, or that two forms of it differ.
    """
    if rehearsal.own is None:
        return
    method: Any = getattr(rehearsal.algorithm, "method", rehearsal.algorithm)
    who = f"{rehearsal.own[0]}: its {rehearsal.own[1]}"
    episodes, (learned, fixed) = rehearsal.episodes(1), rehearsal.weights(1)
    context, before = RehearsedClients(rehearsal).context(learned, fixed), drawn_so_far()

    def computed(*, together: bool) -> Tensor:
        sent = sent_by(method, replace(context, side_by_side=together), episodes)
        found = check_sent(who, method, learned, sent, len(episodes))
        if not any(map(is_finite, found)):
            raise InputError(f"{who} returned NaN or infinity for every made-up client; mend it, or lower --meta.lr")
        return rows([{n: v[None] for n, v in each.items()} for each in found])

    given = {
        "context.learned": learned,
        "context.fixed": fixed,
        **{f"episode {n}": vars(each) for n, each in enumerate(episodes)},
    }
    kept = {where: {name: value.clone() for name, value in each.items()} for where, each in given.items()}
    first = computed(together=False)
    if drawn_so_far() != before:
        raise DrawsRandomNumbers(
            f"{who} drew random numbers; draw from noises, which messages is given for each client"
        )
    for where, values in given.items():
        for name in values:
            if not torch.equal(values[name], kept[where][name]):
                raise InputError(f"{who} wrote into {where}: {name}, which is used again after it; compute with a copy")
    if not torch.equal(first, computed(together=False)):
        raise InputError(
            f"{who} returned another message for the same records the second time, so one client's data would enter "
            "another one's message; let it keep nothing from one call to the next"
        )
    apart = (computed(together=True) - first).norm(dim=1) / first.norm(dim=1).clamp_min(1e-12)
    if bool((apart > _APART).all()):
        raise InputError(
            f"{who} returned another message where several clients are computed at once, as with run.chunk or a GPU "
            f"(apart by {float(apart.min()):.2g} of its length); override one of gradient and gradients alone"
        )
