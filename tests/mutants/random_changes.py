"""Random changes of single expressions and statements in the files that a promise rests on."""

from __future__ import annotations

import ast
import random
from collections.abc import Iterator

from mistakes import ROOT, Mutant, tests_of, written

_COMPARED = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip
_COMPUTED = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.Pow: ast.Mult}
_NAMED = {"min": "max", "max": "min", "any": "all", "all": "any"}


def random_mutants(count: int, seed: int) -> list[Mutant]:
    """`count` changes, spread over the files evenly; the same for the same seed and code."""
    files = [file for file in written()["tests"] if file.startswith(tuple(written()["random"]))]
    chooser, found = random.Random(seed), []
    # A file is read when it is chosen first: there are a hundred.
    sites: dict[str, list[tuple[str, str, str]]] = {}
    while len(found) < count and files:
        file = chooser.choice(files)
        left = sites.setdefault(file, list(changes(file)) if file not in sites else [])
        if not left:
            files.remove(file)
            continue
        what, old, new = left.pop(chooser.randrange(len(left)))
        found.append(Mutant(name=f"random-{len(found)} {what}", file=file, old=old, new=new, tests=tests_of(file)))
    return found


def changes(file: str) -> Iterator[tuple[str, str, str]]:
    """(what, text, changed text) of every change that can be made; the text is whole lines that occur once."""
    source = (ROOT / "dpfedmeta" / file).read_text()
    tree = ast.parse(source)
    lines = source.splitlines(keepends=True)
    for node in _inside(tree):
        for what, replacement in _replacements(node):
            assert isinstance(node, ast.expr | ast.stmt)
            first, last = node.lineno - 1, node.end_lineno or node.lineno
            before = lines[first].encode()[: node.col_offset].decode()
            after = lines[last - 1].encode()[node.end_col_offset :].decode()
            old = "".join(lines[first:last])
            if source.count(old) == 1:
                yield f"{what} at line {node.lineno}", old, before + replacement + after


def _inside(tree: ast.AST) -> Iterator[ast.AST]:
    """All nodes but those of annotations, of f-strings and of what only words an error."""
    for name, value in ast.iter_fields(tree):
        if name in ("annotation", "returns", "exc", "decorator_list"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and not isinstance(child, ast.JoinedStr):
                yield child
                yield from _inside(child)


def _replacements(node: ast.AST) -> Iterator[tuple[str, str]]:
    match node:
        case ast.Compare(ops=[operator]) if type(operator) in _COMPARED:
            swapped = ast.Compare(left=node.left, ops=[_COMPARED[type(operator)]()], comparators=node.comparators)
            yield "comparison", f"({ast.unparse(swapped)})"
        case ast.BinOp() if type(node.op) in _COMPUTED and not _words(node):
            swapped = ast.BinOp(left=node.left, op=_COMPUTED[type(node.op)](), right=node.right)
            yield "arithmetic", f"({ast.unparse(swapped)})"
        case ast.BoolOp():
            other = ast.Or() if isinstance(node.op, ast.And) else ast.And()
            yield "and/or", f"({ast.unparse(ast.BoolOp(op=other, values=node.values))})"
        case ast.UnaryOp(op=ast.Not()):
            yield "not", f"({ast.unparse(node.operand)})"
        case ast.Constant(value=bool()):
            yield "constant", str(not node.value)
        case ast.Constant(value=int() | float()):
            yield "constant", repr(node.value + 1) if isinstance(node.value, int) else repr(2 * node.value)
        case ast.Call():
            yield from _calls(node)
        case ast.Expr(value=ast.Call()) | ast.Raise() | ast.AugAssign():
            yield "statement left out", "pass"
        case ast.If():
            yield from ()


def _calls(node: ast.Call) -> Iterator[tuple[str, str]]:
    if isinstance(node.func, ast.Name) and node.func.id in _NAMED:
        named = ast.Call(func=ast.Name(id=_NAMED[node.func.id]), args=node.args, keywords=node.keywords)
        yield "min/max", ast.unparse(named)
    plain = [argument for argument in node.args if not isinstance(argument, ast.Starred)]
    if len(plain) == len(node.args) >= 2 and not (isinstance(node.func, ast.Name) and node.func.id in _NAMED):
        swapped = [node.args[1], node.args[0], *node.args[2:]]
        yield "arguments swapped", ast.unparse(ast.Call(func=node.func, args=swapped, keywords=node.keywords))


def _words(node: ast.BinOp) -> bool:
    """Text put together."""
    return any(
        isinstance(part, ast.JoinedStr) or (isinstance(part, ast.Constant) and isinstance(part.value, str))
        for part in (node.left, node.right)
    )
