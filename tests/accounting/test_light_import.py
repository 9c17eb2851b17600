"""A plan's numbers need none of the large modules that dp-accounting imports; who uses them has them as ever."""

import subprocess
import sys

PROGRAM = """
import contextlib, io, sys
from dpfedmeta.__main__ import main

large = ("scipy.stats", "scipy.signal", "scipy.optimize", "torch")
with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
    main(["account", "--algo", "dp-agr", "--dataset", "omniglot"])
print([name for name in large if name in sys.modules])
from dpfedmeta.accounting.divergences.light_import import UsedLater
holders = {name.partition(".")[0] for name, module in list(sys.modules.items())
           if any(isinstance(each, UsedLater) for each in list(vars(module).values()))}
print(sorted(holders))
import dp_accounting
from dp_accounting.pld.privacy_loss_distribution import from_gaussian_mechanism
print(repr(dp_accounting.get_epsilon_gaussian(2.0, 1e-5)))
one = from_gaussian_mechanism(2.0, value_discretization_interval=1e-2)
print(repr(one.compose(one).get_epsilon_for_delta(1e-5)))
import scipy.signal, scipy.stats
print(isinstance(scipy.stats, UsedLater), isinstance(sys.modules["scipy.signal"], UsedLater))
"""
PLAIN = """
import dp_accounting
from dp_accounting.pld.privacy_loss_distribution import from_gaussian_mechanism
print(repr(dp_accounting.get_epsilon_gaussian(2.0, 1e-5)))
one = from_gaussian_mechanism(2.0, value_discretization_interval=1e-2)
print(repr(one.compose(one).get_epsilon_for_delta(1e-5)))
"""


def printed(program):
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_a_plan_imports_no_large_module_and_dp_accounting_stays_whole():
    brought, holders, *numbers, stand_ins = printed(PROGRAM)
    assert brought == "[]"
    assert holders == "['dp_accounting']"
    assert numbers == printed(PLAIN)
    assert stand_ins == "False False"
