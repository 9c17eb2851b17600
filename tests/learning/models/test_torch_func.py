"""Gradients of torch.func without torch._dynamo, and with it once somebody imports it."""

import subprocess
import sys

SCRIPT = """
import sys

import torch

from dpfedmeta.learning.models.torch_func import grad, vmap

weight, rows = torch.tensor([1.0, 2.0, 4.0]), torch.tensor([[1.0, 0.5, 2.0], [3.0, 5.0, 0.25]])


def per_row():
    return vmap(grad(lambda weight, row: (weight * row).sum().square()), (None, 0))(weight, rows)


expected = 2 * (rows @ weight)[:, None] * rows
assert torch.equal(per_row(), expected)
large = [name for name in ("torch._dynamo", "sympy") if name in sys.modules]
assert not large, large

early = torch._dynamo
# Who asks for anything else of it gets the module.
assert {first} is not None
import torch._dynamo

assert torch._dynamo is sys.modules["torch._dynamo"]
assert early.compiled_autograd is torch._dynamo.compiled_autograd is sys.modules["torch._dynamo.compiled_autograd"]
assert torch.equal(per_row(), expected)
assert torch.compile(lambda x: x + 1, backend="eager")(rows).equal(rows + 1)
# Compiled autograd is off within a gradient, and as before after it.
seen = []
disable = torch._dynamo.compiled_autograd._disable
torch._dynamo.compiled_autograd._disable = lambda: seen.append(1) or disable()
assert torch.equal(per_row(), expected) and seen == [1]
"""


def run(first):
    done = subprocess.run([sys.executable, "-c", SCRIPT.replace("{first}", first)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_gradient_imports_no_compiler_and_whoever_needs_it_finds_it():
    run("torch._dynamo.compiled_autograd.reset")


def test_the_stand_in_gives_all_that_the_module_has():
    run("torch._dynamo.config")


def test_what_is_set_on_the_stand_in_is_set_on_the_module():
    run("setattr(torch._dynamo, 'marked', 3) or sys.modules['torch._dynamo'].marked")
