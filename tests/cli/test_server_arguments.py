"""Options of a server of real clients reach it, and values of no use are refused by their option."""

import math
from pathlib import Path

import pytest

from dpfedmeta.cli.arguments import parser
from dpfedmeta.cli.server_arguments import add_real_clients, check_real_clients, server_options
from dpfedmeta.core.errors import InputError
from dpfedmeta.federation.entry_points import ServerOptions


def test_every_option_of_a_server_of_real_clients_arrives_under_its_own_name():
    made = parser("A test.", settings=False)
    add_real_clients(made, required=True)
    made.add_argument("--data-dir", type=Path)
    needed = ["--keys", "operator", "--roster", "cards"]
    usual = server_options(made.parse_args(needed))
    assert usual == ServerOptions(keys=Path("operator"), roster=Path("cards"), page=None)
    assert (usual.host, usual.port, usual.seconds, usual.fewest, usual.wait) == ("127.0.0.1", None, 60.0, None, 600.0)
    given = [
        "--listen",
        "::1",
        "--port",
        "77",
        "--seconds",
        "7",
        "--fewest",
        "3",
        "--wait",
        "9",
        "--data-dir",
        "images",
    ]
    assert server_options(made.parse_args([*needed, *given])) == ServerOptions(
        keys=Path("operator"), roster=Path("cards"), host="::1", port=77, page=None, seconds=7.0, fewest=3, wait=9.0,
        data_folder=Path("images"),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("option", "right", "wrong"),
    [
        ("--seconds", [0.001, 9], [0, -1, math.nan, math.inf]),
        ("--wait", [0.001, 9], [0, -1, math.nan, math.inf]),
        ("--port", [0, 65535], [-1, 65536]),
        ("--listen", ["0.0.0.0", "::1"], ["host:80"]),
    ],
)
def test_values_that_no_server_could_use_are_refused_by_their_option(option, right, wrong):
    made = parser("A test.", settings=False)
    add_real_clients(made, required=False)
    for value in right:
        check_real_clients(made.parse_args([f"{option}={value}"]))
    for value in wrong:
        with pytest.raises(InputError, match=f"^{option} {value}: "):
            check_real_clients(made.parse_args([f"{option}={value}"]))
