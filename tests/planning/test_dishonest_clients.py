"""What a plan says a dishonest client can do is what the sums let in."""

import math
import re
from dataclasses import replace

import pytest
import torch

from dpfedmeta.accounting.privacy_plan.privacy_plan import PrivacyPlan
from dpfedmeta.accounting.privacy_plan.secure_round import SecureRounds
from dpfedmeta.analytics.analyses.histogram import Histogram
from dpfedmeta.config.load import resolve
from dpfedmeta.core.params import dimension
from dpfedmeta.core.random.random_sources import KeyedSource
from dpfedmeta.planning.caveats import dishonest_words
from dpfedmeta.planning.run_plan import make_plan
from dpfedmeta.training.build_data import client_side
from dpfedmeta.training.terminal.tables import noise_lines

SMALL = {
    "model.width": "2", "task.ways": "2", "task.shots": "2", "task.queries": "2", "server.rounds": "4",
    "clip.policy": "constant", "population.clients": "600", "population.cohort": "24", "privacy.client.delta": "1e-4",
    "privacy.client.epsilon": "null", "privacy.record.epsilon": "null", "server.noise_multiplier": "0.8",
    "population.max_participations": "null", "privacy.client.hostile": "0.0",
}  # fmt: skip
MICRO = {"record.micro_shots": "1", "record.micro_queries": "1", "record.query_noise": "1.5"}
MODES = {
    "server": ("dp-agr", {}, 0.0),
    "split": ("dp-agr", {"server.noise_site": "clients", "population.sampler": "fixed"}, 0.8 / math.sqrt(24)),
    "shared": ("dp-agrlr-micro", MICRO, 1.5 / 2),
    "stacked": ("dp-agrlr-micro", MICRO | {"server.noise_mode": "stacked"}, 0.0),
}


@pytest.mark.parametrize("mode", MODES)
def test_messages_enter_up_to_the_length_that_is_said(tiny_strokes, mode):
    algo, given, noise = MODES[mode]
    plan = make_plan(resolve(algo, "strokes", None, SMALL | given), tiny_strokes.task)
    words, side = dishonest_words(plan.privacy), client_side(plan, None, KeyedSource(1), torch.device("cpu"))
    size = dimension(plan.algorithm.learned(plan.network, plan.algorithm.initial(plan.network, 0)))
    (said,) = [float(each) for each in re.findall(r"([0-9.e-]+) \(sqrt\(d\)", words)] or [0.0]
    assert said == pytest.approx(noise, rel=1e-2)
    longest = 0.3 * (plan.message_clip_ratio or 1.0) * (1.0 + said * (math.sqrt(size) + 10))
    for factor, enters in ((0.99, True), (1.01, False)):
        sent = torch.zeros(size, dtype=torch.float64)
        sent[3] = factor * longest
        assert (side.whole_numbers(0.3, size).accepted(sent) is not None) == enters
    assert "at most one clip bound" in words
    assert words in noise_lines(plan.privacy)


def plan_of(**given):
    return PrivacyPlan(**{"clients": 3000, "cohort": 60.0, "rounds": 4, "noise_multiplier": 2.0} | given)


def test_under_sums_the_group_alone_bounds_it():
    plan = plan_of(sampler="fixed", server_sees="sum", secure=SecureRounds(bits=16, dropout=0.1, dimension=400))
    whole = plan.at(0).whole
    bounds = 2**15 * math.sqrt(512) / whole.units
    assert f"by up to {bounds:,.0f} clip bounds, in any direction" in dishonest_words(plan)
    assert "nobody can look into a sum" in dishonest_words(plan)
    twice = replace(plan, secure=replace(plan.secure, bits=17))
    assert dishonest_words(twice) != dishonest_words(plan)


def test_analyses_say_it_too():
    counted = Histogram().planned(plan_of(rounds=1, sampler="fixed"))
    whole = counted.at(0).whole
    reach = 2 ** (whole.bits - 1) * math.sqrt(whole.dimension) / whole.units
    assert f"by up to {reach:,.0f} times what an honest one adds at most" in dishonest_words(counted)
    assert "each count by at most 1" in dishonest_words(plan_of(server_sees="sum", missed=1e-9))


def test_where_nothing_is_clipped_nothing_is_bounded():
    assert "as far as it likes: messages are not clipped" in dishonest_words(plan_of(noise_multiplier=None))
    assert "as far as it likes; nobody can look" in dishonest_words(plan_of(server_sees="sum"))
