"""Commands that resume a run or make it again, by the kind of its clients."""

from shlex import quote

from dpfedmeta.core.errors import InputError
from dpfedmeta.core.files.run_directory import DESCRIBED, RunDirectory, identity_in
from dpfedmeta.data.episodes.shape import ASKED, OWN

SERVER = "dpfedmeta federate server"


def kind_of_clients(run: RunDirectory) -> str | None:
    """Kind of a run's clients, by its ledger; None: there is none yet, or it is of no training."""
    described = identity_in(run.path).get(DESCRIBED)
    return str(described["population"]["kind"]) if described else None


def how_to_go_on(run: RunDirectory, place: str | None = None) -> str:
    """Command that resumes the run; `place` stands for its directory and its name."""
    kind, path, name = kind_of_clients(run), place or str(run.path), place or run.path.resolve().name
    if kind == ASKED:
        return f"the command that began it ({SERVER} ... --run.name {name}), typed again"
    if kind == OWN:
        return (
            f"dpfedmeta.train(resume={path!r}, population=...) from Python, or, of a federation, the {SERVER} that "
            f"began it"
        )
    return f"dpfedmeta train --resume {quote(path)}"


def check_simulated(run: RunDirectory) -> None:
    """Refuse to go on with a federation's run as if its clients were simulated here.

    Raises:
        InputError: Its clients are asked by a server; says how it goes on.
    """
    if kind_of_clients(run) == ASKED:
        raise InputError(
            f"{run.path}: belongs to a federation, whose clients hold their own data; go on with {how_to_go_on(run)}"
        )


def repeated(kind: str | None, command: str) -> tuple[str, str]:
    """(command, what it leaves open) that makes a run like this one again.

    Args:
        kind: Of its clients.
        command: That makes it of simulated clients, beginning with `dpfedmeta train`.
    """
    if kind == ASKED:
        words = command.replace("dpfedmeta train", f"{SERVER} --keys KEYS --roster ROSTER", 1)
        return words, "KEYS is the operator's folder and ROSTER the file of the clients' cards."
    if kind == OWN:
        return command, "It used clients of your own; from Python: dpfedmeta.train(settings, population=...)."
    return command, ""
