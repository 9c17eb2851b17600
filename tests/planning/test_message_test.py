"""Plans under which every made-up client sends nothing of use are refused before a charge; presets are not."""

import pytest

from dpfedmeta.config.load import resolve
from dpfedmeta.core.errors import InputError
from dpfedmeta.data.task import Task
from dpfedmeta.data.task_file import load_task
from dpfedmeta.learning.algorithms.maml import Maml
from dpfedmeta.planning.run_plan import make_plan
from dpfedmeta.training.dry_run import needs_no_network
from dpfedmeta.training.run_training import run_training

SINE = {"task.ways": "1", "task.shots": "5", "task.queries": "5", "model.name": "mlp", "model.norm": "none"}
DIVERGE, ZERO, SAME = "made-up client diverge", "made-up client is zero", "send the same message"


class Infinite(Maml):
    def gradient(self, context, episode):
        return {name: value / 0.0 for name, value in super().gradient(context, episode).items()}


class Idle(Maml):
    def gradient(self, context, episode):
        return {name: 0.0 * value for name, value in super().gradient(context, episode).items()}


class Constant(Maml):
    def gradient(self, context, episode):
        return {name: value * 0.0 + 1.0 for name, value in super().gradient(context, episode).items()}


OWN = "tests.planning.test_message_test:"
REFUSED = [
    ("maml", "sinusoids", SINE | {"meta.lr": "6"}, DIVERGE),
    ("dp-agr", "sinusoids", SINE | {"meta.lr": "6"}, DIVERGE),
    ("maml", "strokes", {"meta.method": "reptile", "meta.order": "1"}, ZERO),
    ("dp-agr", "strokes", {"meta.method": "reptile", "meta.order": "1", "model.name": "mlp"}, ZERO),
    ("dp-fedavg", "mnist-shards", {"meta.learn": "body"}, ZERO),
    *(
        ("dp-agr", "strokes", {"meta.method": f"{OWN}Infinite", "run.chunk": chunk}, "returned NaN or infinity")
        for chunk in ("1", "4")
    ),
    ("dp-agrlr-micro", "strokes", {"meta.method": f"{OWN}Idle"}, ZERO),
    ("dp-agr", "strokes", {"meta.method": f"{OWN}Idle"}, ZERO),
    ("dp-agr", "strokes", {"meta.method": f"{OWN}Constant"}, SAME),
]


@pytest.mark.parametrize(("algo", "dataset", "given", "words"), REFUSED)
def test_whoever_would_send_nothing_is_refused_in_a_line(algo, dataset, given, words):
    settings = resolve(algo, dataset, None, given)
    assert not needs_no_network(settings) or "meta.learn" in given
    with pytest.raises(InputError, match=words) as caught:
        make_plan(settings, load_task(dataset)[0])
    assert "\n" not in str(caught.value)


def test_nothing_is_charged(tmp_path):
    given = SINE | {
        "meta.lr": "6",
        "run.dir": str(tmp_path),
        "run.name": "run",
        "run.workers": "1",
        "server.rounds": "1",
    }
    with pytest.raises(InputError, match=DIVERGE):
        run_training(resolve("dp-agr", "sinusoids", None, given))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("algo", "dataset", "given"),
    [
        ("maml", "sinusoids", SINE),
        ("maml", "sinusoids", SINE | {"meta.lr": "0.02", "meta.steps": "1", "meta.adapt": "all"}),
        ("dp-agr", "strokes", {"meta.method": "reptile", "meta.order": "1", "meta.adapt": "all", "meta.learn": "all"}),
        ("dp-agr", "strokes", {"meta.order": "1", "meta.steps": "1"}),
        ("dp-agrlr", "strokes", {"privacy.client.hostile": "0"}),
        ("local-dp", "mnist-shards", {}),
    ],
)
def test_what_learns_is_not(algo, dataset, given):
    make_plan(resolve(algo, dataset, None, given), load_task(dataset)[0])


@pytest.mark.parametrize("algo", ["dp-fedavg", "dp-fedavg-fixed", "local-dp"])
@pytest.mark.parametrize("classes", [2, 4, 6])
def test_made_up_clients_have_labels_that_the_network_knows(algo, classes):
    """Shared classes may be fewer than those of an episode, which clients of shards do not hold."""
    task = Task(name="digits", source={"reader": "mnist"}, image_size=8, channels=1, shared_classes=classes)
    small = {"model.name": "linear", "population.clients": "30", "population.cohort": "10", "server.rounds": "4"}
    small |= {"server.schedule": "[]", "privacy.client.delta": "1.0e-3", "clip.count_noise": "5"}
    plan = make_plan(resolve(algo, "mnist-shards", None, small), task)
    assert (plan.network.ways, plan.shape.ways) == (classes, 5)
