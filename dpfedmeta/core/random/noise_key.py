"""SECRET: the key of a run's noise and cohorts, kept for the server alone."""

from __future__ import annotations

import json

from dpfedmeta.core.errors import InputError
from dpfedmeta.core.files.atomic_files import SECRET
from dpfedmeta.core.files.run_directory import RunDirectory, write_text
from dpfedmeta.core.random.fresh_seeds import FRESH_GENERATOR, FreshSource, name_of
from dpfedmeta.core.random.random_sources import GENERATOR, SEEDS, KeyedSource, OperatingSystemSource, SecretSource

_SEED = "noise_seed.json"
# Runs from before the file named it.
_FIRST_GENERATOR = "philox"


def keep_secret(run: RunDirectory, source: SecretSource) -> None:
    """Write the noise seed, if there is one, and what it is for, for the server alone."""
    if isinstance(source, KeyedSource | FreshSource):
        content = {"seed": source.seed, "generator": name_of(source)}
        write_text(run.secret / _SEED, json.dumps(content) + "\n", mode=SECRET)


def secret_of_run(run: RunDirectory, chosen: int | None, *, secure: bool) -> SecretSource:
    """The noise seed again, or the operating system under --secure-rng.

    A run of an earlier version that drew its seed goes on with noise that is fresh in every attempt: from the same
    key, in streams that it never drew from.

    Args:
        run: The run.
        chosen: Its run.noise_seed, where it is a simulation.
        secure: Whether its ledger states that everything is the operating system's.

    Raises:
        InputError: The seed is lost, or another generator drew from it; no round can be done again identically.
    """
    if secure:
        return OperatingSystemSource()
    path = run.secret / _SEED
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        seed, generator = content["seed"], content.get("generator", _FIRST_GENERATOR)
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise InputError(f"{path}: the noise seed is lost or damaged, so the run cannot go on; restore it") from error
    if type(seed) is not int or not 0 <= seed < SEEDS:
        raise InputError(f"{path}: does not hold a noise seed; restore it from a backup")
    if generator not in ([GENERATOR] if chosen is not None else [GENERATOR, FRESH_GENERATOR]):
        raise InputError(
            f"{path}: noise and cohorts of this run come from the generator {str(generator)[:40]!r}, but this version "
            f"has only {GENERATOR!r}, so they cannot be drawn again; go on with the version that began the run, or "
            "start a new run"
        )
    return FreshSource(seed) if chosen is None else KeyedSource(seed)
