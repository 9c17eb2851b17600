"""Legend of the tables of guarantees: what each relation of a record says, and its epsilons."""

from collections.abc import Sequence

from dpfedmeta.accounting.events.guarantee import Guarantee
from dpfedmeta.accounting.relations.relations import NOT_COVERED, RELATIONS
from dpfedmeta.accounting.rounded import rounded_up

EPSILONS = ("server", "public")
RELATION_COLUMNS = (*EPSILONS, "epsilon of a record, if")


def relation_rows(cells: Sequence[Guarantee]) -> list[tuple[str, str, str]]:
    """Return (epsilon towards the server, towards the public, words) of each relation that holds.

    A single row where they are the same in all; none where no relation was computed.
    """
    server, public = (
        next((cell.relations for cell in cells if (cell.unit, cell.observer) == ("record", observer)), {})
        for observer in EPSILONS
    )
    epsilons = {name: (rounded_up(server[name]), rounded_up(public[name])) for name in RELATIONS if name in server}
    if len(epsilons) > 1 and len(set(epsilons.values())) == 1:
        which = "every relation" if len(epsilons) == len(RELATIONS) else ", ".join(epsilons)
        return [(*next(iter(epsilons.values())), f"it differs in any way ({which})")]
    return [(*each, f"{RELATIONS[name].words} ({name})") for name, each in epsilons.items()]


def relation_lines(cells: Sequence[Guarantee]) -> list[str]:
    """Return the same as lines of a terminal, under their head, with what no relation covers below."""
    rows = relation_rows(cells)
    if not rows:
        return []
    wide = [max(map(len, column)) for column in zip(RELATION_COLUMNS, *rows, strict=True)][: len(EPSILONS)]
    lines = [f"{one:>{wide[0]}} {other:>{wide[1]}}  {words}" for one, other, words in (RELATION_COLUMNS, *rows)]
    return [*lines, NOT_COVERED]
