"""Each setting by itself: its default and exactly the values that it takes, as they were decided and not as they are.

A name, what it is by default, and what it takes: an interval of whole numbers (int) or of others (float), words, text,
true or false; `null` where it may be left open.
"""

import dataclasses
import math

import pytest
import yaml

from dpfedmeta.config.dotted_keys import sections
from dpfedmeta.config.round_settings import ScheduleSettings
from dpfedmeta.config.settings import Settings, setting_fields
from dpfedmeta.core.errors import InputError

TABLE = """
population.clients            400000       int [1, 1e12]
population.cohort             200.0        float (0, inf)
population.sampler            poisson      text
population.max_participations null         int [1, 1e12]
population.records            500          int [2, inf)
population.kind               virtual      disjoint natural real
population.episodes           fixed        whole
population.register           null         text
population.separation         null         int [1, 1e12]
population.most_shots         null         int [1, 1e12]
population.own_test           0.0          float [0, 1)
population.dropout            0.0          float [0, 1)
population.availability       independent  correlated diurnal
population.latency_spread     0.0          float [0, inf)
server.rounds                 200          int [1, 1e12]
server.noise_multiplier       null         float [0, inf)
server.noise_mode             shared       stacked
server.noise_site             server       clients
server.noise                  independent  text
server.buffers                null         int [1, 1e12]
server.abort_on_failure       false        bool
server.optimizer              adam         text
server.lr                     0.003        float (0, inf)
server.final_lr               null         float (0, inf)
server.timeout                null         float (0, inf)
server.unit                   raw          bound
server.beta1                  0.9          float [0, 1)
server.beta2                  0.99         float [0, 1)
server.average                0.0          float [0, 1]
aggregation.mode              messages     text
aggregation.bits              16           int [8, 20]
aggregation.dropout           0.0          float [0, 1)
aggregation.protocol          false        bool
aggregation.adversarial       0.05         float [0, 1)
aggregation.company           picked       drawn
aggregation.rough             false        bool
aggregation.dimension         null         int [1, 1e12]
clip.policy                   constant     text
clip.initial                  0.3          float [1e-15, 1e15]
clip.start                    given        quantile
clip.window                   4            int [1, 1e12]
clip.percentile               90.0         float [0, 100]
clip.quantile                 0.5          float (0, 1)
clip.rate                     0.2          float (0, inf)
clip.count_noise              null         float (0, inf)
clip.lowest                   null         float [1e-15, 1e15]
clip.highest                  null         float [1e-15, 1e15]
clip.scope                    flat         per-layer
meta.method                   maml         text
meta.adapt                    null         all head
meta.learn                    all          body scales
meta.steps                    5            int [1, 1e12]
meta.batch                    null         int [1, 1e12]
meta.lr                       0.4          float (0, inf)
meta.divisions                1            int [1, 1e12]
meta.division_shots           null         int [1, 1e12]
meta.order                    null         int [1, 2]
record.enabled                false        bool
record.release                steps        text
record.micro_ways             null         int [2, inf)
record.micro_shots            1            int [1, 1e12]
record.micro_queries          1            int [1, 1e12]
record.support_clip           null         float (0, inf)
record.support_clip_ratio     1.0          float (0, inf)
record.message_clip_ratio     12.0         float (0, inf)
record.support_noise          null         float (0, inf)
record.query_noise            null         float (0, inf)
record.accountant             pld          rdp prv
record.client_ledgers         false        bool
record.engine                 auto         vmap opacus
privacy.client.epsilon        null         float [1e-6, 1e5]
privacy.client.limit          null         float (0, inf)
privacy.client.delta          1.0e-06      float (0, 1)
privacy.client.observer       public       server
privacy.client.colluding      1            int [1, 1e12]
privacy.client.hostile        0.0          float [0, 1)
privacy.record.epsilon        null         float [1e-6, 1e5]
privacy.record.delta          1.0e-05      float (0, 1)
privacy.record.observer       server       public
privacy.record.relation       null         zero-out row-deleted row-exchanged
task.ways                     5            int [1, 1e12]
task.shots                    5            int [1, 1e12]
task.queries                  5            int [1, 1e12]
task.shift                    0            int [0, 1e12]
task.support_share            0.5          float (0, 1)
task.most_ways                20           int [2, 1e12]
task.most_records             400          int [4, 1e12]
task.balance                  classes      records
model.name                    conv4-strided text
model.width                   32           int [1, 1e12]
model.downscale               null         int [1, 1e12]
model.norm                    batch        group none
model.groups                  4            int?[1, 1e12]
model.activation              relu         tanh
model.features                raw          record support
model.first_gain              1.0          float (0, inf)
model.feature_scale           1.0          float (0, inf)
model.initial                 null         text
model.encoder                 null         text
model.encoder_weights         null         text
model.encoder_size            160          int [8, 1024]
model.encoder_overlap         refuse       accept
evaluation.episodes           600          int [2, 1e12]
evaluation.queries            15           int [1, 1e12]
evaluation.ways               null         int [2, 1e12]
evaluation.shots              null         int [1, 1e12]
evaluation.every              20           int [1, 1e12]
evaluation.validation_episodes 60          int [2, 1e12]
evaluation.adapt              null         all head
evaluation.steps              null         int [1, 1e12]
evaluation.lr                 null         float (0, inf)
track.public_clients          0            int [0, inf)
track.wandb                   off          offline online
track.project                 null         text
track.entity                  null         text
track.group                   null         text
track.model                   false        bool
track.tensorboard             false        bool
run.name                      null         text
run.dir                       runs         text
run.seed                      0            int [0, 2^128)
run.noise_seed                null         int [0, 2^128)
run.device                    auto         cpu cuda
run.chunk                     null         int [1, 1e12]
run.precision                 float32      tf32 bfloat16
run.workers                   null         int [1, 1e12]
run.checkpoint_every          20           int [1, 1e12]
run.keep_checkpoints          2            int [1, 1e12]
from_round                    none         int [0, 1e12]
noise_scale                   1.0          float (0, inf)
cohort_scale                  1.0          float (0, inf)
"""
ROWS = {line.split()[0]: line.split(maxsplit=2)[1:] for line in TABLE.strip().splitlines()}
# Lists and mappings: by their own tests.
MANY = {
    "server.schedule": (),
    "clip.own": {},
    "meta.own": {},
    "privacy.spent_before": (),
    "track.to": (),
    "track.tags": (),
}
WORD, NOTHING = "no-such-word", "none"


def forms(form=Settings, prefix=""):
    for name, inner in sections(form):
        yield f"{prefix}{name}", inner
        yield from forms(inner, f"{prefix}{name}.")


FORMS = {**dict(forms()), "": ScheduleSettings}


def taken(name, value):
    section, _, key = name.rpartition(".")
    more = {} if section or key == "from_round" else {"from_round": 3}
    try:
        made = FORMS[section](**{key: value}, **more)
    except InputError:
        return False
    assert getattr(made, key) == value
    return True


def default_of(name):
    text = ROWS[name][0]
    return None if text in ("null", NOTHING) else text if text == "off" else yaml.safe_load(text)


def numbers(kind, interval):
    """(a bound, whether it is taken, whether what lies beyond is more) for both ends."""
    low, high = interval[1:-1].split(", ")
    for text, closed, side in ((low, interval[0] == "[", -1), (high, interval[-1] == "]", 1)):
        if text != "inf":
            bound = 2**128 if text == "2^128" else kind(float(text))
            yield bound, closed, side


def test_the_table_has_every_setting():
    known = {name for name, _, _ in setting_fields()} - {"algo", "dataset"} - MANY.keys()
    assert known | {field.name for field in dataclasses.fields(ScheduleSettings)} == ROWS.keys()


def test_each_setting_is_by_default_what_was_decided():
    found = {name: value for name, _, value in setting_fields() if name in ROWS}
    found |= {field.name: field.default for field in dataclasses.fields(ScheduleSettings) if field.name != "from_round"}
    due = {name: default_of(name) for name in ROWS if ROWS[name][0] != NOTHING}
    assert {name: repr(value) for name, value in found.items()} == {name: repr(value) for name, value in due.items()}
    assert {name: value for name, _, value in setting_fields() if name in MANY} == MANY


@pytest.mark.parametrize("name", ROWS)
def test_each_setting_takes_what_was_decided_and_no_more(name):
    default, takes = ROWS[name]
    kind, _, interval = takes.replace("?", " ").partition(" ")
    assert taken(name, None) == (default == "null" or "?" in takes)
    if kind == "text":
        assert not taken(name, 3)
    elif kind == "bool":
        assert all(taken(name, value) for value in (True, False))
        assert not taken(name, 1)
    elif kind in ("int", "float"):
        form = int if kind == "int" else float
        for bound, closed, side in numbers(form, interval):
            inside, outside = (
                bound + step if form is int else math.nextafter(bound, step * math.inf) for step in (-side, side)
            )
            assert [taken(name, value) for value in (inside, bound, outside)] == [True, closed, False], bound
        if form is float:
            assert not any(taken(name, value) for value in (math.inf, -math.inf, math.nan))
    else:
        words = [each for each in (default, *takes.split()) if each != "null"]
        assert all(taken(name, word) for word in words)
        assert not taken(name, WORD)


@pytest.mark.parametrize(("name", "longest"), [("track.tags", 64), ("track.to", None), ("privacy.spent_before", None)])
def test_lists_have_words_with_commas_between_them(name, longest):
    section, _, key = name.rpartition(".")
    built = lambda value: getattr(FORMS[section](**{key: value}), key)  # noqa: E731
    words = ("wandb", "mlflow") if name == "track.to" else ("one", "two three")
    assert built(" , ".join(words) + ",") == built(list(words)) == words
    if longest:
        assert built("x" * longest) == ("x" * longest,)
        assert not taken(name, ("x" * (longest + 1),))
    assert not taken(name, ("",))
    assert not taken(name, 3)


@pytest.mark.parametrize("name", ["project", "entity"])
def test_names_of_wandb_are_such(name):
    assert all(taken(f"track.{name}", text) for text in ("a", "x" * 128, "my-lab_2.b c"))
    assert not any(taken(f"track.{name}", text) for text in ("", "x" * 129, *("a" + odd for odd in "/\\#?%:")))
    assert not taken("track.group", "")
