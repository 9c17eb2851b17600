"""Files for containers, systemd, Kubernetes and Prometheus name commands, options, paths and metrics that exist."""

import configparser
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from dpfedmeta.cli.arguments import settings_from
from dpfedmeta.cli.commands.federate_command import parsers_of
from dpfedmeta.config.load import resolve
from dpfedmeta.federation.server import metrics
from tests.federation.test_metrics import running, samples

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "examples/deploy"
UNITS = sorted(DEPLOY.glob("*.service"))


def parsed(words):
    """The options of `dpfedmeta federate ...`; leaves the test where our own parser refuses them."""
    program, part, *rest = words
    assert program == "federate"
    options, more = parsers_of()[part].parse_known_args(rest)
    if part == "server":
        resolve(options.algo or "dp-agrlr-secure", options.dataset or "strokes", None, settings_from(more))
    else:
        assert more == []
    return options


def manifests():
    return list(yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text()))


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_a_unit_starts_a_command_that_is_there_and_stops_it_gently(unit):
    read = configparser.ConfigParser(strict=False)
    read.optionxform = str
    read.read(unit, encoding="utf-8")
    service = read["Service"]
    program, *words = shlex.split(service["ExecStart"])
    assert Path(program).name == "dpfedmeta"
    assert parsed(words).log == "json"
    # Ctrl-C ends a run cleanly; 2 is for a person to mend.
    assert (service["KillSignal"], service["RestartPreventExitStatus"]) == ("SIGINT", "2")
    if shutil.which("systemd-analyze"):
        done = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True, check=False)
        assert "Unknown" not in done.stderr


def test_the_image_copies_what_is_there_and_runs_without_root():
    text = (DEPLOY / "Containerfile").read_text()
    copied = [word for line in re.findall(r"^COPY (.*)$", text, re.MULTILINE) for word in line.split()[:-1]]
    assert copied
    assert [name for name in copied if not (ROOT / name).exists()] == []
    assert re.search(r"^USER [1-9]", text, re.MULTILINE)
    example = text[text.index("dpfedmeta federate") :].split("\nFROM")[0].replace("\\\n#", "")
    assert parsed(shlex.split(example.splitlines()[0])[1:]).stay


def test_the_pod_runs_one_server_whose_keys_only_it_can_read():
    pod = next(each for each in manifests() if each["kind"] == "StatefulSet")["spec"]
    assert pod["replicas"] == 1
    spec = pod["template"]["spec"]
    container = spec["containers"][0]
    options = parsed(container["args"])
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert ports["metrics"] == options.page == int(pod["template"]["metadata"]["annotations"]["prometheus.io/port"])
    assert container["livenessProbe"]["httpGet"] == {"path": "/health", "port": "metrics"}
    mounts = {mount["mountPath"] for mount in container["volumeMounts"]}
    assert all(any(Path(path).is_relative_to(mount) for mount in mounts) for path in (options.keys, options.roster))
    volumes = {volume["name"] for volume in spec["volumes"]}
    claimed = {claim["metadata"]["name"] for claim in manifests() if claim["kind"] == "PersistentVolumeClaim"}
    for each in (container, *spec["initContainers"]):
        assert {mount["name"] for mount in each["volumeMounts"]} <= volumes
        assert each["securityContext"]["readOnlyRootFilesystem"] is True
    assert {v["persistentVolumeClaim"]["claimName"] for v in spec["volumes"] if "persistentVolumeClaim" in v} == claimed


def test_alerts_ask_for_metrics_that_are_served(tmp_path):
    served = {name[0] for name in samples(running(tmp_path))}
    rules = [
        rule for group in yaml.safe_load((DEPLOY / "alerts.yaml").read_text())["groups"] for rule in group["rules"]
    ]
    assert len(rules) == 5
    for rule in rules:
        named = set(re.findall(r"dpfedmeta_\w+", rule["expr"]))
        assert named <= served, rule["alert"]
        assert named or rule["expr"].startswith("up{")
        for status in re.findall(r'status="(\w+)"', rule["expr"]):
            assert status in metrics._STATUSES
