"""The clip policy that docs/extending.md shows, saved as it says and used as it says."""

from pages import ROOT, blocks

from dpfedmeta.config.load import resolve
from dpfedmeta.data.task_file import load_task
from dpfedmeta.planning.run_plan import make_plan
from tests.privacy.test_policies import simulate


def test_the_policy_on_the_page_can_be_planned_with_and_costs_nothing(tmp_path, monkeypatch):
    (code,) = (block.text for block in blocks(ROOT / "docs/extending.md") if "class Halving" in block.text)
    (tmp_path / "policy_of_the_page.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    given = {"clip.policy": "policy_of_the_page:Halving", "clip.own.every": "3"}
    plan, usual = (make_plan(resolve("dp-agr", "strokes", None, more), load_task("strokes")[0]) for more in (given, {}))
    assert plan.planned == usual.planned
    start = plan.settings.clip.initial
    bounds = simulate(plan.policy, size=10, cohort=5, z=1.0, rounds=6)
    assert list(bounds / start) == [1.0, 1.0, 0.5, 0.5, 0.5, 0.25]
