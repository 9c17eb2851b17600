"""The server and a client as Flower's own apps, for a SuperLink and SuperNodes that are there already (`flwr run`).

Flower starts a process for every question, so what a client keeps in memory is lost between two: a server that sees
messages can be served so, secure aggregation cannot. And a SuperNode runs the code that a run brings.
"""

import logging
import random
import sys
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import cast

from dpfedmeta.core.errors import InputError
from dpfedmeta.federation.flower.flower_environment import KIND, MOST_BYTES, check_flower

# Flower's own process: its folders and its log are Flower's. In that log alone it says why an app ended.
check_flower()

from flwr.app import Context, Message  # noqa: E402
from flwr.clientapp import ClientApp  # noqa: E402
from flwr.serverapp import Grid, ServerApp  # noqa: E402

from dpfedmeta.accounting.events.guarantee import UnitName  # noqa: E402
from dpfedmeta.accounting.relations.relations import Relation  # noqa: E402
from dpfedmeta.config.load import resolve  # noqa: E402
from dpfedmeta.federation.client.client_budget import Promise  # noqa: E402
from dpfedmeta.federation.client.client_home import LEDGER, open_home  # noqa: E402
from dpfedmeta.federation.entry_points import Counted  # noqa: E402
from dpfedmeta.federation.flower.flower_channel import FlowerChannel, content_of, record_of  # noqa: E402
from dpfedmeta.federation.identity.credentials import read_identity, read_roster  # noqa: E402
from dpfedmeta.federation.identity.invitation import operator_identity, read_invitation  # noqa: E402
from dpfedmeta.federation.server.client_requests import Heard  # noqa: E402
from dpfedmeta.secure_aggregation.crypto.protocol_errors import Refused  # noqa: E402

Config = Mapping[str, bool | float | int | str]
_NUMBERS = (
    ("epsilon", (int, float), "a number"),
    ("delta", (int, float), "a number"),
    ("participations", (int,), "a whole number"),
)


def _draw_apart() -> None:
    """Flower's threads draw from a generator of their own.

    They send a heartbeat every 20 s or so, after a pause that they draw from the global generator of `random`. If that
    falls into the trial of a network (planning/network_trial/forward_test.py), the network seems to draw, and a sound
    plan is refused; the slower the machine, the more often.
    """
    own = random.Random()
    for name, module in list(sys.modules.items()):
        if name.startswith("flwr.") and vars(module).get("random") is random:
            vars(module)["random"] = own


_draw_apart()


def _say(heard: Heard) -> None:
    """A line in the log that `flwr run --stream` shows; all clients are in every cohort, so it tells nothing secret."""
    logging.getLogger("flwr").info(
        "round %d, %s: %d of %d clients answered, %d declined, %d sent an invalid answer, %d did not answer in time",
        *(heard.round, heard.asked.name.lower(), heard.answered, heard.clients),
        *(heard.declined, heard.unsound, heard.absent),
    )


def server_app() -> ServerApp:
    """A ServerApp that trains a federation; `keys`, `roster`, `settings` and `folder` are keys of its run's config."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        from dpfedmeta.federation.server.training_server import serve

        config: Config = context.run_config
        cards = read_roster(_path(config, "roster"))
        given = {"population.clients": str(len(cards)), "population.cohort": str(len(cards))}
        settings = resolve(None, None, _path(config, "settings"), given)
        if settings.aggregation.mode == "secure":
            raise InputError(
                "aggregation.mode = secure: `flwr run` starts clients without memory; use `dpfedmeta federate server`"
            )
        known = {card.wire_pem: card.identity for card in cards}

        def nodes() -> Mapping[bytes, int]:
            there = [(known.get(node.public_key), node.node_id) for node in grid.get_nodes()]
            return {identity: number for identity, number in there if identity is not None}

        channel = FlowerChannel(grid, nodes, most_bytes=MOST_BYTES)
        serve(
            settings,
            channel,
            _path(config, "folder"),
            identity=operator_identity(_path(config, "keys")),
            roster=[card.identity for card in cards],
            seconds=float(config.get("seconds", 120)),
            fewest=len(cards),
            heard=_say,
        )

    return app


def client_app() -> ClientApp:
    """A ClientApp that answers as a RealClient: `data`, `identity`, `invitation`, `home` stand in its node's config."""
    app = ClientApp()
    kind, action = KIND.split(".")
    assert kind == "query"

    @app.query(action)
    def answer(message: Message, context: Context) -> Message:
        from dpfedmeta.federation.client.client import RealClient

        question = content_of(message)
        if question is None:
            raise Refused("the message holds no question")
        config: Config = context.node_config
        with _told_here():
            home, data, private = _path(config, "home"), _path(config, "data"), read_identity(_path(config, "identity"))
            # An older copy is never taken here: what a config says, it would say again after the next restore.
            if told := open_home(home, data, private):
                print(told, file=sys.stderr)
            client = RealClient(
                data,
                private,
                home / LEDGER,
                server=read_invitation(_path(config, "invitation")).identity,
                promise=_promise(config),
            )
            return Message(record_of(Counted(party=client, home=home, sure=True).answer(question)), reply_to=message)

    return app


def _promise(config: Config) -> Promise:
    """Read the client's promise from its node's config, where keys are the options of `federate client`.

    Raises:
        InputError: It promises nothing, or a value is no number of its kind.
    """
    for key, kinds, words in _NUMBERS:
        if type(config.get(key, 1)) not in kinds:
            raise InputError(f"{key} = {config[key]!r} in this node's config: expected {words}")
    epsilon, often = config.get("epsilon"), config.get("participations")
    return Promise(
        unit=cast(UnitName, config.get("unit", "record")),
        epsilon=None if epsilon is None else float(epsilon),
        delta=float(config.get("delta", 1e-5)),
        participations=None if often is None else int(often),
        relation=cast(Relation | None, config.get("relation")),
    )


@contextmanager
def _told_here() -> Iterator[None]:
    """Show errors of this machine on it alone: Flower sends the text of an exception to the server.

    Raises:
        Refused: There was one, for example because the images belong to another home, or the home is an older copy.
    """
    try:
        yield
    except Refused:
        raise
    except Exception as error:
        if isinstance(error, InputError | OSError):
            print(error, file=sys.stderr)
        else:
            traceback.print_exc()
        raise Refused("this client cannot take part; its own machine says why") from None


def _path(config: Config, key: str) -> Path:
    """A path of a run's or a node's config.

    Raises:
        InputError: It is not given.
    """
    if not config.get(key):
        raise InputError(f"{key}: is missing from the config of this run or node")
    return Path(str(config[key])).expanduser()
