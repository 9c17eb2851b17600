"""Plans of a benchmark's federations, solved once in the process that all its processes are forked from.

Each client makes the plan again for itself, which takes some 5 CPU seconds: 50 of them on two cores are busy with it
for so long that their heartbeats stop. It happens before round 0, and is no part of what is measured; who is forked
finds the numbers that take long already there.
"""

from __future__ import annotations

import json
import os

from dpfedmeta.cli.arguments import settings_from
from dpfedmeta.cli.commands.federate_command import _server_parser
from dpfedmeta.config.load import resolve
from dpfedmeta.data.dataset import open_dataset
from dpfedmeta.federation.offers.offered_settings import for_clients
from dpfedmeta.planning.run_plan import make_plan

# The words of each server, as JSON.
PLANS = "DPFEDMETA_BENCH_PLANS"


def _solve(words: list[str]) -> None:
    options, rest = _server_parser().parse_known_args(words[1:])
    settings = resolve(options.algo, options.dataset, options.config, settings_from(rest))
    task = open_dataset(settings.dataset, None).task
    make_plan(for_clients(settings, task), task)


for _words in json.loads(os.environ.get(PLANS, "[]")):
    _solve(_words)
