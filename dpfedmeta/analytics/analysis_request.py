"""Request of an analysis, as its ledger keeps it: what is asked and which clients are asked, all of it public."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import yaml

from dpfedmeta.accounting.calibration import Targets, calibrate
from dpfedmeta.accounting.events.failure_probability import MOST_TRIALS
from dpfedmeta.accounting.privacy_plan.privacy_plan import PrivacyPlan
from dpfedmeta.analytics.analysis import FOLDER, Analysis
from dpfedmeta.config.load import resolve_text, to_yaml
from dpfedmeta.config.settings import Settings
from dpfedmeta.core.errors import InputError
from dpfedmeta.core.files.read_files import WrongEncoding, read_lines
from dpfedmeta.core.plugins import plugin_registry as members
from dpfedmeta.core.pydantic_errors import YAML_ERRORS, read_yaml
from dpfedmeta.core.still_working import told_while


@dataclass(frozen=True, kw_only=True)
class FixedCohort:
    """A cohort of a fixed size whose clients may fall silent: how real clients are asked, and their simulation.

    Nobody knows how often real clients fail, so who answers must not depend on anybody's data or coin: exactly
    `Request.cohort` clients are invited, and one client in another's place is what is hidden.

    Attributes:
        dropout: Share of them that may be missing; below that nothing is unmasked.
        adversarial: Share of them that may tell the server all they know.
        colluding: Clients whose share of the noise does not count, since the observer knows it.
        hostile: Share of all clients that may leave out their share of the noise.
    """

    dropout: float = 0.0
    adversarial: float = 0.05
    colluding: int = 1
    hostile: float = 0.0

    @classmethod
    def of(cls, settings: Settings) -> FixedCohort:
        """Return the options that the settings of a training have."""
        together, client = settings.aggregation, settings.privacy.client
        return cls(
            dropout=together.dropout,
            adversarial=together.adversarial,
            colluding=client.colluding,
            hostile=client.hostile,
        )


@dataclass(frozen=True, kw_only=True)
class Request:
    """Request of one analysis.

    Attributes:
        kind: Name of a member of analyses/.
        epsilon: Target for (client, public).
        delta: delta of the client cells.
        cohort: Expected number of clients that are asked; each is drawn by a coin of its own, unless `fixed`.
        clients: N.
        own: The member's options.
        settings: Settings of the training: who the clients are and what they compute; None: `names` says all.
        names: A file with the names of one client a line, tabs between them; None: those of the clients' classes.
        run: Folder of the run whose model is adapted; None: none is.
        noise_seed: Given, the analysis is a simulation and promises nothing.
        fixed: Given, exactly `cohort` clients are asked.
    """

    kind: str
    epsilon: float
    delta: float
    cohort: float
    clients: int
    own: Mapping[str, Any]
    settings: Settings | None = None
    names: str | None = None
    run: str | None = None
    noise_seed: int | None = None
    fixed: FixedCohort | None = None

    def __post_init__(self) -> None:
        if not 0 < self.epsilon < math.inf:
            raise InputError(f"--epsilon {self.epsilon!r}: a target is a finite number above 0")
        if not 0 < self.delta < 1:
            raise InputError(f"--delta {self.delta!r}: a number above 0 and below 1")
        if not 0 < self.cohort <= self.clients:
            raise InputError(f"--cohort {self.cohort:g}: expected above 0 and at most {self.clients:,}, all clients")
        if self.noise_seed is not None and not 0 <= self.noise_seed < 2**128:
            raise InputError(f"--noise-seed {self.noise_seed}: expected a whole number from 0 on, of at most 128 bits")
        if self.fixed is not None and not float(self.cohort).is_integer():
            raise InputError(f"--cohort {self.cohort:g}: a whole number, since exactly this many clients are asked")
        if self.clients > MOST_TRIALS and self.cohort > self.clients / 2:
            raise InputError(f"--cohort {self.cohort:g}: at most half of the clients if they are over {MOST_TRIALS:,}")

    @property
    def analysis(self) -> Analysis:
        """The member.

        Raises:
            InputError: There is none of this name, or an option is not one of its own.
        """
        return made(self.kind, self.own)

    def planned(self) -> PrivacyPlan:
        """The smallest noise that meets the target.

        Raises:
            RefusedPlan: No noise does, or too few clients would make it.
        """
        asked = PrivacyPlan(
            clients=self.clients,
            cohort=self.cohort,
            rounds=1,
            noise_multiplier=1.0,
            client_delta=self.delta,
        )
        fixed = self.fixed
        if fixed is not None:
            asked = replace(asked, sampler="fixed", colluding=fixed.colluding, hostile=fixed.hostile)
        plan = self.analysis.planned(asked)
        if fixed is not None and plan.secure is not None:
            plan = replace(plan, secure=replace(plan.secure, dropout=fixed.dropout, adversarial=fixed.adversarial))
        with told_while("solving the analysis for its noise"):
            return calibrate(plan, Targets(client_epsilon=self.epsilon))

    def as_text(self) -> str:
        """YAML, which `from_text` reads back."""
        content = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "settings"}
        if self.fixed is None:
            del content["fixed"]
        else:
            content["fixed"] = asdict(self.fixed)
        text = yaml.safe_dump({"analysis": {**content, "own": dict(self.own)}}, sort_keys=False)
        return text + (f"---\n{to_yaml(self.settings)}" if self.settings is not None else "")

    @classmethod
    def from_text(cls, text: str, where: str) -> Request:
        """The inverse.

        Raises:
            InputError: It is no such text; `where` says whose it is.
        """
        head, _, rest = text.partition("\n---\n")
        try:
            content = read_yaml(head)["analysis"]
            settings = resolve_text(rest, where) if rest else None
            fixed = FixedCohort(**content.pop("fixed")) if "fixed" in content else None
            return cls(**content, fixed=fixed, settings=settings)
        except (LookupError, TypeError, ValueError, *YAML_ERRORS) as error:
            raise InputError(f"{where}: not the request of an analysis ({' '.join(str(error).split())})") from error

    def names_by_client(self) -> list[Mapping[str, int]]:
        """SECRET: what each line of the file names, and how often."""
        return read_names(Path(self.names or ""))


def made(kind: str, own: Mapping[str, Any]) -> Analysis:
    """A member with its options.

    Raises:
        InputError: There is none of this name, or an option is not one of its own.
    """
    member = members.find("analysis", kind, FOLDER)
    known = {field.name for field in fields(member)}
    if set(own) - known:
        raise InputError(
            f"analysis {kind}: takes {', '.join(sorted(known))}, not {', '.join(sorted(set(own) - known))}"
        )
    analysis: Analysis = member(**own)
    return analysis


def options_of(analysis: Analysis) -> dict[str, Any]:
    """The options of a member, as `made` takes them."""
    return asdict(analysis)  # type: ignore[call-overload, no-any-return]


def read_names(path: Path) -> list[Mapping[str, int]]:
    """SECRET: a file with one client a line, tabs between its names; an empty line is a client without names.

    Raises:
        InputError: It cannot be read, or holds nobody.
    """
    try:
        lines = read_lines(path)
    except (OSError, WrongEncoding) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(
            f"--names {path}: cannot be read ({reason}); expected UTF-8 text, one client a line"
        ) from error
    if not lines:
        raise InputError(f"--names {path}: is empty; expected one client a line, tabs between its names")
    return [Counter(name.strip() for name in line.split("\t") if name.strip()) for line in lines]
