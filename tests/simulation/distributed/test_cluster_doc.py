"""The job files of docs/cluster.md, as far as their tools are here."""

import re
import subprocess
from pathlib import Path

import yaml

TEXT = (Path(__file__).parents[3] / "docs/cluster.md").read_text()


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", TEXT, re.DOTALL)


def test_the_slurm_job_is_bash_with_directives_first():
    (script,) = blocks("bash")
    assert script.splitlines()[0] == "#!/bin/bash"
    assert script.count("#SBATCH --") == 7
    done = subprocess.run(["bash", "-n"], input=script, text=True, capture_output=True)
    assert (done.returncode, done.stderr) == (0, "")
    broken = subprocess.run(["bash", "-n"], input=script.replace("\nfi\n", "\n"), text=True, capture_output=True)
    assert broken.returncode


def test_the_kubernetes_job_is_yaml_whose_parts_name_each_other():
    (text,) = blocks("yaml")
    service, job = yaml.safe_load_all(text)
    assert (service["kind"], job["kind"]) == ("Service", "Job")
    pod = job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert service["spec"]["selector"] == {"job-name": job["metadata"]["name"]}
    assert pod["subdomain"] == service["metadata"]["name"]
    assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}
    assert job["spec"]["completionMode"] == "Indexed"
    words = container["args"]
    assert f"--nnodes={job['spec']['completions']}" in words
    assert f"--nproc-per-node={container['resources']['limits']['nvidia.com/gpu']}" in words
    name, _, domain = (
        next(word for word in words if "endpoint" in word).partition("=")[2].partition(":")[0].partition(".")
    )
    assert (name, domain) == (f"{job['metadata']['name']}-0", pod["subdomain"])
    assert any(word.startswith("--run.name=") for word in words)
