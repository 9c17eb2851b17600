"""Accounts of runs that are on disk: what was promised and spent, from the ledger alone, and what really happened."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from dpfedmeta.accounting.rounded import rounded_up
from dpfedmeta.cli.arguments import DONE, print_json, print_line
from dpfedmeta.core.errors import InputError, RefusedPlan
from dpfedmeta.core.pydantic_errors import counted_words

if TYPE_CHECKING:
    from dpfedmeta.accounting.events.guarantee import Guarantee
    from dpfedmeta.accounting.ledger.published import Verified
    from dpfedmeta.accounting.privacy_plan.privacy_plan import PrivacyPlan
    from dpfedmeta.cli.papers import Account
    from dpfedmeta.core.files.run_directory import RunDirectory
    from dpfedmeta.training.verification.verify import VerifiedRun

_SHOWN = 10  # files by their names
_PRICED = "selection.json: the price of the choice is no less than what its list and the ledger give"


def account_of_runs(console: Console, options: argparse.Namespace, chosen: Sequence[Path]) -> int:
    """Print what runs promised and spent, as the options ask.

    Raises:
        InputError: A folder holds no run, or one that contradicts itself.
    """
    from dpfedmeta.core.files.run_checks import check_has_ledger
    from dpfedmeta.core.files.run_directory import RunDirectory

    runs = [RunDirectory(path) for path in chosen]
    for path in chosen:
        check_has_ledger(path)
    if options.statement is not None:
        return _statement(console, runs[0], options.json)
    if options.papers is not None or options.events is not None:
        if len(runs) > 1:
            raise InputError("--papers, --events: name one run")
        from dpfedmeta.cli.papers import write_all

        return write_all(console, options, account_of(runs[0]))
    if options.realised is not None:
        return _realised(console, runs[0], options.json)
    if len(runs) == 1:
        return _of_run(console, options, runs[0])
    if all(_kind_of(path) == "loop" for path in chosen):
        return _of_loops(console, options, runs)
    return _of_copies(console, options, runs)


def _kind_of(path: Path) -> str:
    """Kind of what a folder holds beside training runs; empty for these."""
    from dpfedmeta.core.files.run_directory import ANALYSIS, LOOP, config_of

    kinds = {ANALYSIS: "analysis", LOOP: "loop"}
    return next((kind for begins, kind in kinds.items() if config_of(path).startswith(begins)), "")


def _statement(console: Console, run: RunDirectory, as_text: bool) -> int:
    from dpfedmeta.cli.run_statement import statement_lines

    of = account_of(run)
    assert of.rounds is not None
    assert of.head is not None
    lines = statement_lines(
        run.path,
        of.plan,
        of.cells,
        of.rounds,
        of.head,
        cautions=of.cautions,
        unverified=of.unverified,
        register=of.register,
    )
    if as_text:
        print_json({"statement": lines, "head": of.head, "guarantees": [cell.as_json() for cell in of.cells]})
        return DONE
    print_line(console, "\n".join(lines))
    return DONE


def account_of(run: RunDirectory) -> Account:
    """The account of a run, verified first: of what it spent, or of what it may spend where it may go on.

    Raises:
        InputError: The ledger is damaged, or a file beside it contradicts it.
    """
    from dpfedmeta.accounting.ledger.ledger import phases_of, read_content
    from dpfedmeta.cli.papers import Account
    from dpfedmeta.training.verification.verify import VerifiedRun

    kind, found = _kind_of(run.path), _verified(run)
    proven = found.proven if isinstance(found, VerifiedRun) else None
    settings, cells = proven.settings if proven else None, found.to_state()
    said = proven.cautions if proven else (found.simulation,)
    stage = found.snapshot.stage if isinstance(found, VerifiedRun) else f"of the kind {kind}"
    # What its first cell was computed from.
    spent = cells[0] in found.guarantees
    return Account(
        name=run.path.resolve().name,
        plan=found.plan,
        cells=cells,
        phases=phases_of(found.charges) if spent else found.plan.phases,
        rounds=found.rounds,
        head=read_content(run.ledger, torn=True).heads[-1],
        stage=f"{stage}; stated is what it {'spent' if spent else 'may spend'}",
        cautions=tuple(filter(None, said)),
        register=settings.population.register if settings else None,
        unverified=found.unverified,
        product="Summary statistics" if kind == "analysis" else "Machine learning model",
        clients=proven.described.population.whose if proven else "unknown",
        simulation=found.simulation is not None,
        chosen=proven is not None and proven.chosen is not None,
    )


def _of_loops(console: Console, options: argparse.Namespace, runs: Sequence[RunDirectory]) -> int:
    """The spending of several loops over the same clients together; whether the clients are the same no ledger says."""
    from dpfedmeta.accounting.ledger.ledger import read_content
    from dpfedmeta.accounting.rounded import asked
    from dpfedmeta.cli.sweeps.tuning_cost import compose

    names: dict[str, Path] = {}
    for run in runs:
        name = read_content(run.ledger, torn=True).identity.run
        if name in names:
            raise InputError(f"--verify: {run.path} holds the same rounds as {names[name]}; name each loop once")
        names[name] = run.path
    found = [_verified(run) for run in runs]
    try:
        cost = compose([each.plan for each in found])
    except RefusedPlan as error:
        raise RefusedPlan(f"--verify: {str(error).replace('the runs of this sweep', 'these loops')}") from None
    simulation = next((each.simulation for each in found if each.simulation), None)
    content = {"runs": cost.runs, "clients": cost.clients, "adjacency": cost.adjacency, "delta": cost.client_delta}
    if options.json:
        print_json({**content, "client_public": cost.client_public, "single": cost.single, "simulation": simulation})
        return DONE
    lines = [
        f"{cost.runs} loops of {cost.clients:,} clients each, counted with all their planned rounds. If client k is "
        "the same client in each (no ledger says so), then all together:",
        f"  (client, public), {cost.adjacency}, delta = {asked(cost.client_delta)}: epsilon = "
        f"{rounded_up(cost.client_public, 4)}; at most {rounded_up(cost.single, 4)} for one alone",
        "This holds for loops whose numbers (clients, cohort, rounds, promise) were fixed before the first was "
        "released. Towards the server nothing is promised: it sees each update.",
        *([simulation] if simulation else []),
    ]
    print_line(console, "\n".join(lines))
    remarks = [f"{run.path}: {each}" for run, one in zip(runs, found, strict=True) for each in one.remarks]
    _show_remarks(console, options, remarks, "; ".join(dict.fromkeys(each.unverified for each in found)))
    return DONE


def _show_remarks(console: Console, options: argparse.Namespace, remarks: Sequence[str], unverified: str) -> None:
    """Print what was verified, and in the last line what was not."""
    if options.verify is not None and not options.json:
        for line in (*(f"verified: {remark}" for remark in remarks), unverified):
            print_line(console, line)


def _of_run(console: Console, options: argparse.Namespace, run: RunDirectory) -> int:
    from dpfedmeta.core.files.run_directory import CONFIG, PLAN, REPORT, ROUNDS, SUMMARY
    from dpfedmeta.training.results.run_archive import not_compared
    from dpfedmeta.training.terminal.tables import guarantee_table, rounds_words
    from dpfedmeta.training.verification.verify import VerifiedRun

    found = _verified(run)
    of_run, title, word = {"simulation": found.simulation, "unverified": found.unverified}, "", None
    if isinstance(found, VerifiedRun):
        snapshot, proven, word = found.snapshot, found.proven, found.proven.word
        so_far = " so far" if snapshot.words else ""
        title = f"What was spent{so_far} in {rounds_words(len(found.charges))}, from the ledger alone"
        if snapshot.words and not options.json:
            print_line(console, f"{run.path}: {snapshot.words}")
        if options.run is not None and not options.json:
            promised = f"What was promised for {rounds_words(found.plan.rounds)}"
            console.print(guarantee_table(proven.promised, promised, word=word))
        of_run |= {"status": snapshot.stage} | ({"chosen": proven.chosen} if proven.chosen else {})
        gone = ", ".join(name for name in (CONFIG, PLAN, ROUNDS, SUMMARY, REPORT) if not (run.path / name).exists())
        of_run |= {"absent": gone} if gone else {}
        others = not_compared(run)
        more = f" and {len(others) - _SHOWN} more" if len(others) > _SHOWN else ""
        of_run |= {"not_compared": f"{', '.join(others[:_SHOWN])}{more}"} if others else {}
    title = title or f"What the {_kind_of(run.path)} spent, from the ledger alone"
    code = show_cells(console, options, found.plan, found.guarantees, title, of_run, word=word)
    absent = f"not there, so not compared: {of_run['absent']}\n" if "absent" in of_run else ""
    absent += f"not compared: {of_run['not_compared']}\n" if "not_compared" in of_run else ""
    _show_remarks(console, options, found.remarks, absent + found.unverified)
    return code


def _verified(run: RunDirectory) -> Verified:
    """The ledger against everything beside it."""
    from dpfedmeta.training.verification.verify import audit

    kind = _kind_of(run.path)
    if kind == "loop":
        from dpfedmeta.privacy.rounds.verify_rounds import verify_rounds

        return verify_rounds(run)
    if kind == "analysis":
        from dpfedmeta.analytics.verification import verify

        return verify(run)
    found = audit(run)
    return replace(found, remarks=(*found.remarks, *_beside(run, found)))


def _beside(run: RunDirectory, found: VerifiedRun) -> list[str]:
    """Compare what is made of a verified run, and the files that it counts with; remarks."""
    from dpfedmeta.reporting.html.run_page import check_report
    from dpfedmeta.training.results.run_archive import check_card, check_manifest

    snapshot, proven = found.snapshot, found.proven
    shown = [*check_report(snapshot, proven), *check_manifest(run), *check_card(run, found)]
    if snapshot.page is not None:
        from dpfedmeta.reporting.html.page import check_pictures  # brings matplotlib

        shown.append(check_pictures(snapshot, proven))
    counted = proven.settings.privacy.spent_before
    if counted:
        # PyTorch comes with it, and few runs name an analysis.
        from dpfedmeta.analytics.verification import check_counted

        shown += check_counted(counted)
    register = proven.settings.population.register
    if register is not None:
        from dpfedmeta.accounting.ledger.population_register import check_reserved

        shown += check_reserved(Path(register), snapshot.content.identity.run, snapshot.content.charges)
    return [*shown, *([_PRICED] if proven.chosen else [])]


def _of_copies(console: Console, options: argparse.Namespace, runs: list[RunDirectory]) -> int:
    from dpfedmeta.accounting.ledger.ledger import read_content
    from dpfedmeta.accounting.ledger.population_register import check_reserved
    from dpfedmeta.core.files.run_directory import SELECTION
    from dpfedmeta.training.verification.replan import settings_of_ledger
    from dpfedmeta.training.verification.verify import audit, compose

    chosen = next((run.path / SELECTION for run in runs if (run.path / SELECTION).exists()), None)
    if chosen is not None:
        raise InputError(
            f"--verify: {chosen} prices one run alone, not copies that went on; verify one folder at a time"
        )
    each = [audit(run) for run in runs]
    for run, one in zip(runs, each, strict=True):
        _beside(run, one)
    found = compose(runs)
    if found is None:
        raise InputError("--verify: these are not copies of one run; verify them one at a time")
    remarks, content = list(found.remarks), read_content(runs[0].ledger, torn=True)
    if (register := settings_of_ledger(runs[0].ledger, content).population.register) is not None:
        remarks += check_reserved(Path(register), content.identity.run, found.charges)
    for remark in remarks if not options.json else ():
        print_line(console, f"verified: {remark}")
    simulation = next((one.simulation for one in each if one.simulation), None)
    title = "What the copies spent together"
    word, unverified = each[0].proven.word, "; ".join(dict.fromkeys(one.unverified for one in each))
    of_run = {"simulation": simulation, "unverified": unverified}
    code = show_cells(console, options, found.plan, found.guarantees, title, of_run, word=word)
    _show_remarks(console, options, (), unverified)
    return code


def show_cells(
    console: Console,
    options: argparse.Namespace,
    plan: PrivacyPlan,
    cells: tuple[Guarantee, ...],
    title: str,
    of_run: Mapping[str, str | None] | None = None,
    *,
    word: str | None = None,
) -> int:
    """Print the cells; `of_run` is what there is to say of a run besides, `word` on whose word they rest."""
    from dpfedmeta.training.terminal.tables import guarantee_table, guarantee_words, noise_lines

    if options.plot is not None:
        _draw(options.plot, plan)
    if options.json:
        content = {"guarantees": [cell.as_json() for cell in cells], "parameters": parameters(plan)}
        print_json({**content, **(of_run or {}), **({"by_word": word} if word else {})})
        return DONE
    for line in noise_lines(plan):
        print_line(console, line)
    if options.solve == "bits" and plan.secure is not None:
        console.print(f"the fewest bits: {plan.secure.bits}", highlight=False)
    console.print(guarantee_table(cells, title, word=word, explained=options.explain))
    if (of_run or {}).get("simulation"):
        console.print((of_run or {})["simulation"], style="bold yellow")
    if (of_run or {}).get("chosen"):
        print_line(console, str((of_run or {})["chosen"]), style="bold yellow")
    if options.explain:
        for line in guarantee_words(cells):
            print_line(console, line)
    if options.plot is not None:
        print_line(console, f"epsilon against rounds: {options.plot}")
    return DONE


def _draw(path: Path, plan: PrivacyPlan) -> None:
    from dpfedmeta.accounting.observers.four_guarantees import epsilon_curve
    from dpfedmeta.reporting.plots.run_plots import curve_plot

    curve_plot(path, *epsilon_curve(plan))


def parameters(plan: PrivacyPlan) -> dict[str, object]:
    """The noise and sizes behind the table; null where an algorithm has none."""
    from dpfedmeta.planning.privacy.aggregation import constants_of_the_sum

    record = plan.record
    return {
        "noise_multiplier": plan.noise_multiplier,
        "support_noise": record.support_noise if record else None,
        "query_noise": record.query_noise if record else None,
        "total_noise": plan.at(0).total_noise,
        "rounds": plan.rounds,
        "clients": plan.clients,
        "cohort": plan.cohort,
        "max_participations": plan.max_participations,
        "observer_of_server": plan.server_sees,
        **_correlated(plan),
        **constants_of_the_sum(plan),
    }


def _correlated(plan: PrivacyPlan) -> dict[str, object]:
    """Return the constants of correlated noise; the multiplier over its sensitivity is 1/mu of all rounds together."""
    from dpfedmeta.accounting.events.toeplitz_noise_cost import CorrelatedNoise

    noise = plan.at(0).noise
    if not isinstance(noise, CorrelatedNoise):
        return {}
    return {
        "noise_sensitivity": noise.sensitivity(),
        "separation": noise.separation,
        "most_participations": noise.participations,
        "coefficients": list(noise.numbers),
    }


def _realised(console: Console, run: RunDirectory, as_text: bool) -> int:
    from dpfedmeta.privacy.rounds.round_sum import LEFT_OUT
    from dpfedmeta.training.verification.verify import realised

    verified = _verified(run)
    found = realised(run, verified.plan, verified.charges)
    if as_text:
        print_json({"realised": {**vars(found), "record_server": found.as_number}})
        return DONE
    least, mean, most = found.cohort_sizes
    messages, rounds = found.left_out
    lines = [
        f"clients that took part: {found.participants:,}",
        f"most participations of one client: {found.most_participations}",
        f"cohort sizes: {least} to {most}, mean {mean:.1f}",
        f"(record, server) of that client's records: epsilon {rounded_up(found.record_server)}",
    ]
    if messages:
        lines.append(
            f"messages that no honest client sends, set to 0: {messages} in {counted_words(rounds, 'round')} "
            f"({run.secret / LEFT_OUT}); a client's code or data is wrong, or a client is hostile"
        )
    print_line(console, "From the server's private folder: do not publish it, do not promise it.", "bold yellow")
    print_line(console, "\n".join(lines))
    return DONE
