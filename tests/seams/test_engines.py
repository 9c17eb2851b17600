"""Whatever a member of one's own overrides is what every engine computes, or the run is refused in a line."""

import inspect
import traceback
from dataclasses import replace
from typing import Any

import pytest
import torch
import yaml

from dpfedmeta.config.load import resolve
from dpfedmeta.core.errors import InputError, OwnCodeFailed
from dpfedmeta.core.files.run_directory import RunDirectory
from dpfedmeta.data.episodes.episode import Episode
from dpfedmeta.data.task_file import load_task
from dpfedmeta.federation.offers.offered_settings import for_clients
from dpfedmeta.learning.algorithms.maml import Maml
from dpfedmeta.learning.meta.adaptation import Adaptation
from dpfedmeta.learning.meta.inner_loop import adapted_params
from dpfedmeta.learning.meta.meta_gradients import batched
from dpfedmeta.learning.meta.overridden import own_words
from dpfedmeta.learning.meta.target_kind import targets_of
from dpfedmeta.learning.models.functional import apply
from dpfedmeta.learning.models.registry import build_network
from dpfedmeta.learning.models.spec import NetworkSpec
from dpfedmeta.planning.privacy.secure_sum_settings import learned_dimension
from dpfedmeta.simulation import client_runner
from dpfedmeta.training.run_training import run_training
from dpfedmeta.training.setup import RunOptions
from dpfedmeta.training.verification.verify import audit
from tests.documentation.pages import ROOT, blocks
from tests.golden.golden_runs import SECURE
from tests.learning.meta.clients import context_of
from tests.seams import own_learners, own_method
from tests.seams.trained import settings_of
from tests.seams.wrong_learners import WRONG
from tests.simulation.distributed.threads import threads

# A key of the task file.
KIND = "kind"
OWN = "tests.seams.own_learners"
SHORT = {
    "server.rounds": "2", "evaluation.every": "2", "model.name": "conv3-blur", "server.optimizer": "sgd",
    "server.beta1": "0", "server.lr": "0.1",
}  # fmt: skip
PARTS = {"record.micro_shots": "1", "record.micro_queries": "1", "record.query_noise": "2", "clip.policy": "constant"}
STEPS = {"record.query_noise": "2", "clip.policy": "constant", "privacy.client.hostile": "0.0"}
ENGINES = {
    "one by one": ("maml", {}),
    "chunked": ("maml", {"run.chunk": "4"}),
    "two processes": ("maml", {"run.workers": "2"}),
    "ranks": ("maml", {"run.workers": "null"}),
    "noise": ("dp-agr", {"server.noise_multiplier": "2"}),
    "checked in": ("dp-agr-checkins", {"server.noise_multiplier": "2", "population.cohort": "60"}),
    "correlated": ("dp-agr-correlated", {"server.noise_multiplier": "2"}),
    "micro": ("dp-agrlr-micro", PARTS),
    "steps": ("dp-agrlr", STEPS),
    "opacus": ("dp-agrlr", {**STEPS, "record.engine": "opacus"}),
    "secure": ("dp-agr-secure", {**SECURE, "clip.policy": "constant"}),
    "secure parts": ("dp-agrlr-secure", {**SECURE, "record.micro_shots": "1", "record.micro_queries": "1",
                                         "meta.divisions": "1"}),
}  # fmt: skip
MAML, PROTONET = {"meta.method": "maml"}, {"meta.method": "protonet"}
REPTILE = {"meta.method": "reptile", "meta.order": "1", "meta.adapt": "all", "meta.learn": "all"}
WEIGHTS = ("Faster", "Learning", "Beginning", "Directed", "Wider")
# Settings with a member of one's own, and the same with a built-in one.
MEMBERS = {
    **{name: ({"meta.method": f"{OWN}:{name}"}, MAML) for name in ("One", "Several", "Both", "Mixed", "Sent")},
    **{name: ({"meta.method": f"{OWN}:{name}"}, MAML) for name in WEIGHTS},
    **{name: (REPTILE | {"meta.method": f"{OWN}:{name}"}, REPTILE) for name in ("OneOfReptile", "SeveralOfReptile")},
    "of the page": ({"meta.method": "tests.seams.own_method:SignMaml"}, MAML),
    "Flat": ({"meta.method": f"{OWN}:Flat"}, PROTONET),
    "step": ({"server.optimizer": f"{OWN}:half_steps"}, {}),
    "policy": ({"clip.policy": "tests.seams.own_policy:Halving", "clip.own.every": "1"}, {"clip.policy": "constant"}),
    "noise": ({"server.noise": "tests.seams.own_noise:Coin"}, {}),
    "sampler": ({"population.sampler": "tests.seams.own_sampler:Blocks"}, {}),
    "network": ({"model.name": f"{OWN}:net"}, {}),
    "targets": ({KIND: f"{OWN}:Said"}, {}),
    "targets of prototypes": (PROTONET | {KIND: f"{OWN}:Said"}, PROTONET),
}


QUICK = ("one by one", "chunked", "noise", "micro", "steps")
NO_CHUNK, NO_MICRO, NO_STEPS = ("chunked",), ("micro", "secure parts"), ("steps", "opacus")
VERIFIED = ("noise", "secure")
UNBOUNDED = ("one by one", "chunked", "two processes", "ranks")
# The engines under which it is refused, and words of the line.
REFUSED: dict[str, Any] = {
    "targets of prototypes": [(NO_STEPS, "it uses support records outside")],
    "Sent": [(NO_MICRO, "its own messages would not be computed"), (NO_STEPS, "its own messages would not")],
    "Faster": [(NO_STEPS, "its own inner rule would not be computed")],
    "Directed": [(NO_STEPS, "its own inner rule would not be computed")],
    "Wider": [(NO_STEPS, "it uses support records outside its gradient steps")],
    "Flat": [(NO_STEPS, "it uses support records outside its gradient steps")],
    **{name: [(NO_STEPS, "its own gradient would not be computed")] for name in ("One", "Mixed", "of the page")},
    "Several": [(NO_STEPS, "its own gradients would not be computed")],
    "Both": [(NO_STEPS, "its own gradient and gradients would not be computed")],
    **{
        f"{name}OfReptile": [(NO_CHUNK, "has no effect here"), (NO_MICRO, "need meta-gradients"),
                             (NO_STEPS, f"its own gradient{'s' * (name == 'Several')} would not be computed")]
        for name in ("One", "Several")
    },
    "policy": [(UNBOUNDED, "neither a target .* nor a noise")],
    "noise": [(UNBOUNDED, "would never be called"), (("checked in",), "only supported with independent Gaussian noise"),
              (NO_MICRO[:1] + NO_STEPS, "expected independent noise"),
              (("secure", "secure parts"), "expected independent with secure aggregation")],
    "sampler": [(("correlated",), "keeps no minimum distance"),
                (NO_MICRO[:1] + NO_STEPS, "expected no cap under blocks"),
                (("secure", "secure parts"), "expected messages: an attempt that is made again")],
}  # fmt: skip


@pytest.fixture
def releases(tiny_task_file, tmp_path, monkeypatch):
    """What each round of a run released, and its length."""
    # Ranks that are threads of one process would put their weights into one module at once.
    monkeypatch.setattr(client_runner, "network_on", lambda spec, device: build_network(spec).to(device))

    def of(engine, given):
        algo, own = ENGINES[engine]
        folder = tmp_path / f"{len(list(tmp_path.iterdir()))}"
        content = yaml.safe_load(tiny_task_file.read_text()) | {key: given[key] for key in given if key == KIND}
        task = tmp_path / f"{len(content)}.yaml"
        task.write_text(yaml.safe_dump(content))
        given = {key: given[key] for key in given if key != KIND}
        settings = settings_of(task, folder, algo, {**SHORT, **own, **given})
        if engine != "ranks":
            run = run_training(settings)[0]
        else:
            with threads(2) as (ranks, _, _):
                run = run_training(settings, RunOptions(workers=ranks))[0]
        if engine in VERIFIED:
            # Whatever it learns, the numbers of its plan are those that its messages have.
            audit(run)
        return [(row["release"], row["aggregate_norm"]) for row in run.rounds()]

    return of


def refusal_of(member, engine):
    return next((words for engines, words in REFUSED.get(member, []) if engine in engines), None)


def cases():
    """One learner under every engine; others under those that take a second."""
    for member in MEMBERS:
        for engine in ENGINES:
            quick = member == "One" or engine in QUICK or refusal_of(member, engine) is not None
            yield pytest.param(member, engine, marks=() if quick else pytest.mark.slow)


@pytest.mark.parametrize(("member", "engine"), [*cases()])
def test_a_member_of_ones_own_is_what_an_engine_computes_or_is_refused(member, engine, releases):
    own, built_in = MEMBERS[member]
    words = refusal_of(member, engine)
    if words is not None:
        with pytest.raises(InputError, match=words) as caught:
            releases(engine, own)
        assert "\n" not in str(caught.value)
        return
    found, usual = releases(engine, own), releases(engine, built_in)
    assert len(found) == 2
    assert found[-1][0] != usual[-1][0]


@pytest.mark.parametrize(
    "member", [name if name in ("One", "Sent") else pytest.param(name, marks=pytest.mark.slow) for name in MEMBERS]
)
def test_engines_without_noise_agree_on_a_member_of_ones_own(member, releases):
    engines = [engine for engine in UNBOUNDED if refusal_of(member, engine) is None]
    found = [[length for _, length in releases(engine, MEMBERS[member][0])] for engine in engines]
    assert all(each == pytest.approx(found[0], rel=1e-3) for each in found)


# Noise of records is drawn in the order of the names, which are public.
@pytest.mark.parametrize("engine", [engine for engine in ENGINES if engine not in ("micro", *NO_STEPS)])
def test_the_order_of_names_in_a_message_changes_nothing(engine, releases):
    assert releases(engine, {"meta.method": f"{OWN}:Reordered"}) == releases(engine, MAML)


@pytest.mark.parametrize("engine", ["one by one", "chunked", "noise", "micro", "secure", "secure parts"])
@pytest.mark.parametrize("name", WRONG)
def test_a_learner_with_a_mistake_is_refused_by_name_before_the_first_round(name, engine, tiny_task_file, tmp_path):
    algo, own = ENGINES[engine]
    given = {**SHORT, **own, "meta.method": f"tests.seams.wrong_learners:{name}"}
    words = "its own messages would not" if name == "Fewer" and engine in NO_MICRO else WRONG[name]
    with pytest.raises(InputError, match=f"meta.method = tests.seams.wrong_learners:{name}[ :].*{words}") as caught:
        run_training(settings_of(tiny_task_file, tmp_path, algo, given))
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("side_by_side", [False, True])
def test_a_meta_gradient_means_the_same_in_whichever_form_it_is_overridden(side_by_side):
    network = NetworkSpec(name="conv3-blur", channels=1, image_size=28, ways=3, width=4, norm="none", learn="all")
    module, adaptation = build_network(network), Adaptation(adapt="head", steps=2, lr=0.1)
    weights = own_learners.One(order=2, adaptation=adaptation).initial(network, 0)
    weights = {name: value + 0.1 for name, value in weights.items()}
    labels, generator = torch.arange(3).repeat_interleave(2), torch.Generator().manual_seed(5)
    episodes = [
        Episode(
            support_images=torch.rand(6, 1, 28, 28, generator=generator), support_labels=labels,
            query_images=torch.rand(6, 1, 28, 28, generator=generator), query_labels=labels,
        )
        for _ in range(3)
    ]  # fmt: skip
    context = context_of(module, weights, {}, network=network, side_by_side=side_by_side)
    usual = list(Maml(order=2, adaptation=adaptation).messages(context, episodes, 1.0, [None] * 3))
    for name in ("One", "Several", "Both", "Mixed", "Sent"):
        method = getattr(own_learners, name)(order=2, adaptation=adaptation)
        found = list(method.messages(context, episodes, 1.0, [None] * 3))
        at_once = method.gradients(context, batched(episodes)) if name != "Sent" else None
        for place, (message, exact) in enumerate(zip(found, usual, strict=True)):
            for key, value in exact.items():
                due = (20.0 * value).tanh()
                assert torch.allclose(message[key], due, atol=1e-5)
                assert at_once is None or torch.allclose(at_once[key][place], due, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("Wrapper", "its gradient is never called: messages come from Maml"),
        ("OneOfFedAvg", "its gradient overrides nothing of FedAvg, so nothing would call it"),
        ("Failing", r"fails when clients compute with it.*KeyError: 'no such weight', at .*own_learners\.py, line"),
        ("Circular", "fails when clients compute with it.*RecursionError"),
    ],
)
def test_a_learner_whose_own_function_cannot_be_used_is_refused_in_a_line(name, words, tiny_task_file, tmp_path):
    algo = "dp-fedavg" if name == "OneOfFedAvg" else "maml"
    given = SHORT | {"meta.method": f"{OWN}:{name}"}
    with pytest.raises(InputError, match=words) as caught:
        run_training(settings_of(tiny_task_file, tmp_path, algo, given))
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


LATE, LATE_STEPS = {"meta.method": f"{OWN}:Late"}, {"server.optimizer": f"{OWN}:late_steps"}


@pytest.mark.parametrize(
    ("engine", "own"), [*((each, LATE) for each in ("one by one", "two processes")), ("noise", LATE_STEPS)]
)
def test_what_fails_in_a_round_is_said_in_a_line_without_a_clients_data(engine, own, tiny_task_file, tmp_path):
    algo, given = ENGINES[engine]
    settings = settings_of(tiny_task_file, tmp_path, algo, {**SHORT, **given, **own})
    with pytest.raises(OwnCodeFailed, match=r"ValueError.*own_learners.py, line \d+; .* --resume") as caught:
        run_training(settings)
    assert ("secret" in "".join(traceback.format_exception(caught.value))) == (engine in UNBOUNDED)
    assert RunDirectory(tmp_path / "run").read_json("summary.json")["status"] == "interrupted"


@pytest.mark.parametrize("engine", ["noise", "micro", "secure", "secure parts"])
def test_what_fails_at_all_clients_is_refused_before_a_charge_where_something_is_promised(
    engine, tiny_task_file, tmp_path
):
    algo, given = ENGINES[engine]
    settings = settings_of(tiny_task_file, tmp_path, algo, {**SHORT, **given, **LATE})
    with pytest.raises(
        InputError, match=r"fails for each of 8 clients.*nothing was charged.*own_learners.py, line"
    ) as caught:
        run_training(settings)
    assert "secret" not in "".join(traceback.format_exception(caught.value))
    assert not (tmp_path / "run").exists()


SOME = {
    "noise": "noise", "chunked": "noise", "two processes": "noise", "checked in": "checked in",
    "correlated": "correlated", "micro": "micro", "secure": "secure", "secure parts": "secure parts",
}  # fmt: skip
SIDE = {"chunked": {"run.chunk": "4"}, "two processes": {"run.workers": "2"}}


@pytest.mark.parametrize("engine", SOME)
def test_an_exception_at_one_client_counts_as_an_update_that_is_not_finite(
    engine, tiny_task_file, tmp_path, monkeypatch, capsys
):
    """Under a promise the end of a run would tell of a client's data, whichever engine computes."""
    algo, given = ENGINES[SOME[engine]]
    failed, alone = [], client_runner.ClientRunner._alone
    monkeypatch.setattr(client_runner.ClientRunner, "_alone", lambda *given: failed.append(given[4]) or alone(*given))
    found = {}
    for name in ("Sometimes", "NotFinite"):
        own = {**SHORT, **given, **SIDE.get(engine, {}), "meta.method": f"{OWN}:{name}"}
        run, status = run_training(settings_of(tiny_task_file, tmp_path / name, algo, own))
        assert status == "completed"
        found[name] = [row["release"] for row in run.rounds()], [row["aggregate_norm"] for row in run.rounds()]
    assert "secret" not in capsys.readouterr().err
    assert failed or engine == "two processes"
    if engine in ("micro", "secure parts"):  # null records are noise of their own there
        return
    (exact, lengths), (due, others) = found.values()
    assert exact == due or (engine == "chunked" and lengths == pytest.approx(others, rel=1e-3))


@pytest.mark.parametrize("engine", sorted({*SOME.values()}))
def test_code_of_ones_own_is_tried_without_the_key_of_the_run(engine, tiny_task_file, tmp_path):
    """With a chosen seed everything passed; with a drawn key the trial before round 0 ended in a LookupError."""
    algo, given = ENGINES[engine]
    own = {**SHORT, **given, "meta.method": f"{OWN}:Sometimes", "run.noise_seed": "null", "server.rounds": "1"}
    assert run_training(settings_of(tiny_task_file, tmp_path, algo, own))[1] == "completed"


@pytest.mark.parametrize("algo", ["dp-agr", "dp-agrlr-micro", "dp-agr-secure"])
@pytest.mark.parametrize("name", ["Wider", "Beginning", "One"])
def test_a_plan_counts_the_weights_that_a_method_makes(name, algo, tiny_task_file):
    """Those that a built-in network has, plus its own."""
    task, _ = load_task(str(tiny_task_file))
    counts = [
        learned_dimension(resolve(algo, str(tiny_task_file), None, {"meta.method": method}), task)
        for method in (f"{OWN}:{name}", "maml")
    ]
    assert counts[0] == counts[1] + (name == "Wider")


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("adapt", ["head", "all"])
def test_a_direction_is_what_every_step_takes(order, adapt):
    """In training, one client or several, and in evaluation; the head's closed form is for plain steps alone."""
    network = NetworkSpec(name="conv3-blur", channels=1, image_size=28, ways=3, width=4, norm="none", learn="all")
    module, generator = build_network(network), torch.Generator().manual_seed(5)
    labels = torch.arange(3).repeat_interleave(2)
    episode = Episode(
        support_images=torch.rand(6, 1, 28, 28, generator=generator), support_labels=labels,
        query_images=torch.rand(6, 1, 28, 28, generator=generator), query_labels=labels,
    )  # fmt: skip
    adaptation = Adaptation(adapt=adapt, steps=2, lr=0.05, rule=own_learners.Signs())
    method = own_learners.Directed(order=order, adaptation=adaptation)
    weights = {name: value + 0.1 for name, value in method.initial(network, 0).items()}
    names = [name for name in weights if adapt == "all" or name.startswith("head.")]

    def adapted(start):
        theta = {name: start[name] for name in names}
        for _ in range(2):
            logits = apply(module, {**start, **theta}, episode.support_images, None)
            loss = torch.nn.functional.cross_entropy(logits, labels)
            steps = torch.autograd.grad(loss, tuple(theta.values()), create_graph=order == 2)
            theta = {name: value - 0.05 * step.sign() for (name, value), step in zip(theta.items(), steps, strict=True)}
        return {**start, **theta}

    start = {name: value.clone().requires_grad_() for name, value in weights.items()}
    query = apply(module, adapted(start), episode.query_images, None)
    due = torch.autograd.grad(torch.nn.functional.cross_entropy(query, labels), tuple(start.values()))
    for chunked in (False, True):
        context = context_of(module, weights, {}, network=network, side_by_side=chunked)
        (found,) = method.messages(context, [episode], 1.0, [None])
        for value, exact in zip((found[name] for name in start), due, strict=True):
            assert torch.allclose(value, exact, atol=1e-5)
    judged = adapted_params(module, weights, episode.support_images, labels, adaptation)
    assert all(torch.allclose(judged[name], value, atol=1e-6) for name, value in adapted(start).items())


def test_a_plan_says_that_evaluation_never_runs_a_gradient_of_ones_own():
    never = "evaluation, adapt and personal models take the steps of its rule, and never run that"
    how = {"order": 2, "adaptation": Adaptation(adapt="head", steps=1, lr=0.1)}
    for name in ("One", "Several", "Sent"):
        assert never in own_words(f"{OWN}:{name}", getattr(own_learners, name)(**how))[0]
    for name, own in (("Directed", "inner rule"), ("Wider", "inner rule"), ("Beginning", "no function")):
        made = getattr(own_learners, name)
        adaptation = Adaptation(adapt="head", steps=1, lr=0.1, rule=made.rule)
        assert own_words(f"{OWN}:{name}", made(order=2, adaptation=adaptation)) == [
            f"method {OWN}:{name} (over Maml): {own} of its own computes messages"
        ]


def test_targets_whose_loss_and_residuals_differ_are_refused(tiny_task_file):
    task, _ = load_task(str(tiny_task_file))
    assert targets_of(replace(task, kind=f"{OWN}:Said")) == own_learners.Said()
    with pytest.raises(InputError, match="its residuals are not the derivative of its loss"):
        targets_of(replace(task, kind=f"{OWN}:HalfSaid"))


@pytest.mark.parametrize("member", [name for name in MEMBERS if KIND not in MEMBERS[name][0]])
def test_real_clients_run_no_code_of_a_servers_own(member, tiny_task_file):
    task, _ = load_task(str(tiny_task_file))
    given = MEMBERS[member][0]
    with pytest.raises(InputError, match="do not run code or read files that the server names"):
        for_clients(resolve("dp-agr", str(tiny_task_file), None, given), task)


def test_the_learner_of_the_page_is_the_one_that_is_tried():
    (code,) = (block.text for block in blocks(ROOT / "docs/extending.md") if "class SignMaml" in block.text)
    assert inspect.getsource(own_method.SignMaml).strip() in code


def test_an_inner_rule_that_takes_a_setting_is_named_in_the_plan():
    """It stands in the adaptation that `planned` makes, not in the class."""
    how = {"order": 2, "adaptation": Adaptation(adapt="head", steps=1, lr=0.1, rule=own_learners.Signs())}
    (line,) = own_words(f"{OWN}:Beginning", own_learners.Beginning(**how))
    assert line.endswith("inner rule of its own computes messages")
