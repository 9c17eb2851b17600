import math
from dataclasses import dataclass, replace

import pytest

from dpfedmeta.config.load import resolve
from dpfedmeta.core.errors import InputError, RefusedPlan
from dpfedmeta.data.task_file import load_task
from dpfedmeta.planning.policy_from_settings import own_policy_name, with_own_policy
from dpfedmeta.planning.run_plan import make_plan
from dpfedmeta.privacy.clip_policies.constant_policy import Constant
from dpfedmeta.privacy.clip_policies.quantile_policy import BelowBound
from dpfedmeta.privacy.clip_policy import attached_scale

GIVEN = {"server.rounds": "3", "server.noise_multiplier": "2", "clip.window": "2"}


@dataclass(frozen=True)
class State:
    bound: float = 0.5
    mode: str = "following"
    seen: tuple[float, ...] = (1.0,)


@dataclass(frozen=True)
class Steady:
    """The least that a policy is."""

    attachment: object = None
    state: object = State()

    def initial(self):
        return self.state

    def next_bound(self, state, aggregate):
        return state, state.bound


class Unlisted:
    """An attachment whose sensitivity is whatever it says."""

    size, sensitivity, scale = 1, 0.1, 1.0


def settings(algo="dp-agr"):
    return resolve(algo, "strokes", None, {name: value for name, value in GIVEN.items() if algo != "maml"})


def test_a_plan_takes_the_object_and_says_so():
    plan = make_plan(settings(), load_task("strokes")[0], Steady())
    assert plan.policy == Steady()
    assert plan.settings.clip.policy == "own"
    # Its bounds are post-processing: the promise does not move.
    assert plan.planned == make_plan(settings(), load_task("strokes")[0]).planned
    with pytest.raises(InputError, match=r"clip\.policy = own.*clip_policy=\.\.\."):
        _ = replace(plan, own_policy=None).policy


def test_a_run_remembers_values_or_a_class():
    assert own_policy_name(Steady()).endswith(
        "Steady: Steady(attachment=None, state=State(bound=0.5, mode='following', seen=(1.0,)))"
    )
    assert own_policy_name(Unlisted()) == f"{__name__}.Unlisted"


@pytest.mark.parametrize(
    ("policy", "said"),
    [
        (object(), r"has no initial\(\)"),
        (Steady, "is a class"),
        (Steady(state=State(bound=0.0)), r"initial\(\)\.bound is 0\.0"),
        (Steady(state=State(bound=math.inf)), r"initial\(\)\.bound is inf"),
        (Steady(state=State(bound=True)), r"initial\(\)\.bound is True"),
        (Steady(state=State(mode="resting")), "mode is 'resting', expected one of constant"),
        (Steady(state=State(seen=object())), "use a dataclass of numbers, text and tuples"),
        (Steady(attachment=Unlisted()), "Unlisted, whose sensitivity is not known"),
    ],
)
def test_what_breaks_the_protocol_is_refused_by_name(policy, said):
    with pytest.raises(InputError, match=said) as caught:
        with_own_policy(settings(), policy)
    assert str(caught.value).startswith("clip_policy = ")


def test_nothing_to_clip_and_nothing_to_count():
    with pytest.raises(InputError, match="maml does not clip"):
        with_own_policy(settings("maml"), Steady())
    counting = Steady(attachment=BelowBound(scale=attached_scale(2.0, 30.0, 0.5)))
    assert with_own_policy(settings(), counting).clip.policy == "own"
    with pytest.raises(RefusedPlan, match="counts norms of exact messages"):
        with_own_policy(resolve("dp-agrlr-micro", "strokes", None, {}), counting)


def test_the_policies_of_the_package_are_objects_too():
    made = make_plan(resolve("dp-aqc", "strokes", None, {}), load_task("strokes")[0]).policy
    for policy in (Constant(initial_bound=0.1), made):
        assert with_own_policy(settings(), policy).clip.policy == "own"
