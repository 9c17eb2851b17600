"""Mistakes made by rule: each changes one expression or statement of a file."""

from __future__ import annotations

import ast
import inspect
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import CodeType

from mistakes import ROOT, Mutant, changed

PACKAGE = ROOT / "dpfedmeta"
# What only talks to people; nothing is promised in it.
TALKING = {"print", "warn", "info", "debug", "warning", "say", "log"}

_AT_ONCE = ("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>")
_BOUNDARY = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.In: ast.NotIn, ast.NotIn: ast.In,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip
_ARITHMETIC = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.Pow: ast.Mult,
    ast.FloorDiv: ast.Div, ast.BitXor: ast.BitOr, ast.BitOr: ast.BitAnd, ast.BitAnd: ast.BitOr,
}  # fmt: skip
_TWIN = {"min": "max", "max": "min", "any": "all", "all": "any", "ceil": "floor", "floor": "ceil"}


@dataclass(frozen=True, kw_only=True)
class Change:
    """One mistake that a rule makes.

    Attributes:
        kind: The rule.
        file: Below dpfedmeta/.
        lines: The first and the last line that it touches, its statement's first line among them.
        within: Whether it stands in a function; what stands outside runs at the import.
        old: Whole lines that occur once in the file.
        new: What takes their place.
    """

    kind: str
    file: str
    lines: tuple[int, int]
    within: bool
    old: str
    new: str


@dataclass(frozen=True, kw_only=True)
class Known:
    """What the package's definitions say of names: fields of classes in order, arguments that have defaults."""

    fields: Mapping[str, Mapping[str, str]]
    defaults: Mapping[str, frozenset[str]]


@lru_cache(maxsize=1)
def known() -> Known:
    """The definitions of the whole package; of two with one name, the defaults that both have."""
    fields: dict[str, dict[str, str]] = {}
    defaults: dict[str, frozenset[str]] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                typed = [each for each in node.body if isinstance(each, ast.AnnAssign)]
                fields[node.name] = {ast.unparse(each.target): ast.unparse(each.annotation) for each in typed}
                has = frozenset(ast.unparse(each.target) for each in typed if each.value is not None)
            elif isinstance(node, ast.FunctionDef):
                plain, keyword = [*node.args.posonlyargs, *node.args.args], node.args.kwonlyargs
                late = [argument.arg for argument in plain[len(plain) - len(node.args.defaults) :]]
                named = [a.arg for a, value in zip(keyword, node.args.kw_defaults, strict=True) if value is not None]
                has = frozenset([*late, *named])
            else:
                continue
            defaults[node.name] = defaults.get(node.name, has) & has
    return Known(fields=fields, defaults=defaults)


@dataclass(frozen=True)
class _Place:
    """Where a node stands: its parent, its statement, and the names of its class and function with their types."""

    parent: ast.AST
    statement: ast.stmt | None
    self_type: str
    names: Mapping[str, str]
    within: bool


def _walk(node: ast.AST, place: _Place) -> Iterator[tuple[ast.AST, _Place]]:
    """All nodes but annotations, decorators, f-strings, what words an error and what only talks."""
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "exc", "decorator_list", "msg"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if not isinstance(child, ast.AST) or isinstance(child, ast.JoinedStr) or _talks(child):
                continue
            statement = child if isinstance(child, ast.stmt) else place.statement
            # What an argument is by default is computed when the function is made.
            within = place.within and not (name == "args" and isinstance(node, ast.FunctionDef))
            here = _Place(node, statement, place.self_type, place.names, within)
            yield child, here
            if isinstance(child, ast.ClassDef):
                here = _Place(child, child, child.name, {}, within=False)
            elif isinstance(child, ast.FunctionDef):
                arguments = [*child.args.args, *child.args.kwonlyargs]
                types = {a.arg: ast.unparse(a.annotation) if a.annotation else "" for a in arguments}
                if "self" in types:
                    types["self"] = place.self_type
                here = _Place(child, child, place.self_type, types, within=True)
            yield from _walk(child, here)


def _talks(node: ast.AST) -> bool:
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return True  # a docstring
    called = node.value.func if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) else None
    name = called.attr if isinstance(called, ast.Attribute) else called.id if isinstance(called, ast.Name) else ""
    return name in TALKING


def _changes_of(node: ast.AST, place: _Place) -> Iterator[tuple[str, str]]:
    """(kind, what takes the node's place)."""
    match node:
        case ast.If(orelse=[]) if ast.unparse(node.test) != "TYPE_CHECKING":
            leaves = isinstance(node.body[-1], ast.Raise | ast.Return | ast.Continue | ast.Break)
            yield "guard left out" if leaves else "branch left out", "pass"
        case ast.Compare():
            for index, operator in enumerate(node.ops):
                if type(operator) in _BOUNDARY:
                    ops = [*node.ops[:index], _BOUNDARY[type(operator)](), *node.ops[index + 1 :]]
                    yield "comparison", _text(ast.Compare(left=node.left, ops=ops, comparators=node.comparators))
        case ast.BoolOp():
            other = ast.Or() if isinstance(node.op, ast.And) else ast.And()
            yield "and/or", _text(ast.BoolOp(op=other, values=node.values))
            for index in range(len(node.values)):
                rest = [*node.values[:index], *node.values[index + 1 :]]
                yield "condition left out", _text(rest[0] if len(rest) == 1 else ast.BoolOp(op=node.op, values=rest))
        case ast.UnaryOp(op=ast.Not()):
            yield "not", _text(node.operand)
        case ast.UnaryOp(op=ast.USub()) if not isinstance(node.operand, ast.Constant):
            yield "arithmetic", _text(node.operand)
        case ast.BinOp() if type(node.op) in _ARITHMETIC and not _is_words(node):
            yield "arithmetic", _text(ast.BinOp(left=node.left, op=_ARITHMETIC[type(node.op)](), right=node.right))
            yield "term left out", _text(node.left)
            if not isinstance(node.op, ast.Sub | ast.Div | ast.Pow | ast.FloorDiv):
                yield "term left out", _text(node.right)
        case ast.Constant(value=bool()):
            yield "constant", str(not node.value)
        case ast.Constant(value=int()):
            yield "constant", str(node.value + 1)
            yield "constant", f"({node.value - 1})"
        case ast.Constant(value=float()):
            yield "constant", repr(2 * node.value)
        case ast.IfExp():
            yield "choice", _text(node.body)
            yield "choice", _text(node.orelse)
        case ast.ListComp() | ast.SetComp() | ast.GeneratorExp() | ast.DictComp():
            yield from _unfiltered(node)
        case ast.Expr(value=ast.Call()) | ast.AugAssign():
            yield "statement left out", "pass"
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            yield "statement left out", "pass"
        case ast.Name(ctx=ast.Load()):
            yield from (("neighbour", name) for name in _neighbours(node.id, place.names))
        case ast.Attribute(value=ast.Name(id=owner), ctx=ast.Load()) if place.names.get(owner):
            fields = known().fields.get(place.names[owner], {})
            yield from (("neighbour", f"{owner}.{name}") for name in _neighbours(node.attr, fields))
        case ast.Call():
            yield from _changes_of_call(node)
        case ast.Tuple() | ast.List() | ast.Set() if isinstance(place.parent, ast.Call | ast.keyword | ast.Starred):
            for index in range(len(node.elts) if len(node.elts) > 1 else 0):
                yield "ingredient left out", _text(type(node)(elts=[*node.elts[:index], *node.elts[index + 1 :]]))
        case ast.Dict() if len(node.keys) > 1:
            for index in range(len(node.keys)):
                keys, values = list(node.keys), list(node.values)
                del keys[index], values[index]
                yield "ingredient left out", _text(ast.Dict(keys=keys, values=values))


def _changes_of_call(node: ast.Call) -> Iterator[tuple[str, str]]:
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    if name in _TWIN:
        owner = f"{_text(node.func.value)}." if isinstance(node.func, ast.Attribute) else ""
        yield "min/max", _text(ast.Call(func=ast.Name(id=owner + _TWIN[name]), args=node.args, keywords=node.keywords))
        if len(node.args) > 1 and not node.keywords:
            yield from (("term left out", _text(argument)) for argument in node.args)
    elif name == "sorted":
        yield "not sorted", _text(ast.Call(func=ast.Name(id="list"), args=node.args, keywords=[]))
    for index, keyword in enumerate(node.keywords):
        if keyword.arg is not None and (keyword.arg in known().defaults.get(name, ()) or name == "dict"):
            rest = [*node.keywords[:index], *node.keywords[index + 1 :]]
            yield "keyword left out", _text(ast.Call(func=node.func, args=node.args, keywords=rest))
    plain = [isinstance(each, ast.Name | ast.Attribute) for each in node.args]
    if len(plain) > 1 and plain[0] and plain[1] and name not in _TWIN:
        swapped = [node.args[1], node.args[0], *node.args[2:]]
        yield "arguments swapped", _text(ast.Call(func=node.func, args=swapped, keywords=node.keywords))


def _unfiltered(node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp) -> Iterator[tuple[str, str]]:
    for index, part in enumerate(node.generators):
        if part.ifs:
            bare = ast.comprehension(target=part.target, iter=part.iter, ifs=[], is_async=0)
            parts = [*node.generators[:index], bare, *node.generators[index + 1 :]]
            yield "filter left out", _text(type(node)(**{**dict(ast.iter_fields(node)), "generators": parts}))


def _neighbours(name: str, types: Mapping[str, str]) -> list[str]:
    """What stands next to it among those of its type."""
    alike = [other for other, kind in types.items() if kind and kind == types.get(name) and other != "self"]
    at = alike.index(name) if name in alike else 0
    return [alike[at - 1]] if len(alike) > 1 and name in alike else []


def _text(node: ast.expr) -> str:
    return (
        f"({ast.unparse(node)})" if not isinstance(node, ast.Name | ast.Call | ast.GeneratorExp) else ast.unparse(node)
    )


def _is_words(node: ast.BinOp) -> bool:
    sides = (node.left, node.right)
    return any(isinstance(side, ast.JoinedStr) for side in sides) or any(
        isinstance(side, ast.Constant) and isinstance(side.value, str) for side in sides
    )


def changes(file: str) -> Iterator[Change]:
    """All that the rules make of a file, each other code that compiles."""
    source = (PACKAGE / file).read_text()
    tree = ast.parse(source)
    lines = source.splitlines(keepends=True)
    top = _Place(tree, None, "", {}, within=False)
    for node, place in _walk(tree, top):
        made = list(_changes_of(node, place))
        if isinstance(node, ast.With) and not any(item.optional_vars for item in node.items):
            made.append(("with left out", ""))
        for kind, replacement in made:
            assert isinstance(node, ast.expr | ast.stmt)
            first, last, end = node.lineno - 1, node.end_lineno or 0, node.end_col_offset or 0
            if isinstance(node, ast.With):
                # Its head alone: the body stays.
                held = node.items[-1].context_expr
                last, end, replacement = held.end_lineno or 0, held.end_col_offset or 0, "if True"
                end += lines[last - 1].encode()[end:].decode().index(":")
            before = lines[first].encode()[: node.col_offset].decode()
            new = before + replacement + lines[last - 1].encode()[end:].decode()
            began = place.statement.lineno if place.statement else node.lineno
            head = node.test.end_lineno if isinstance(node, ast.If) else last
            while source.count("".join(lines[first:last])) > 1 and first:
                first -= 1
                new = lines[first] + new
            old = "".join(lines[first:last])
            if source.count(old) == 1:
                yield Change(kind=kind, file=file, lines=(began, head or last), within=place.within, old=old, new=new)


def _is_other_code(change: Change) -> bool:
    source = (PACKAGE / change.file).read_text()
    try:
        return ast.dump(ast.parse(source.replace(change.old, change.new))) != ast.dump(ast.parse(source))
    except SyntaxError:
        return False


def as_change(mutant: Mutant) -> Change:
    """A mistake that is written down, as if a rule had made it."""
    source = (PACKAGE / mutant.file).read_text()
    alike = _alike(mutant.old, mutant.new)
    rests = [text[alike:][::-1] for text in (mutant.old, mutant.new)]
    begin = source.index(mutant.old) + alike
    end = begin + len(rests[0]) - _alike(*rests)
    first, last = (source.count("\n", 0, at) + 1 for at in (begin, max(begin, end - 1)))
    within = mutant.file.endswith(".py") and _run_by_import(source) == _run_by_import(changed(mutant))
    around = [began for began, ended in _statements(source) if began <= first <= ended] if within else []
    lines = (max(around, default=first), last)
    return Change(kind="written", file=mutant.file, lines=lines, within=within, old=mutant.old, new=mutant.new)


def _alike(one: str, other: str) -> int:
    """How many characters both begin with."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((at for at, (left, right) in pairs if left != right), min(len(one), len(other)))


@lru_cache(maxsize=1)
def _statements(source: str) -> list[tuple[int, int]]:
    """The first and the last line of each statement but definitions."""
    nodes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.stmt)]
    defined = ast.ClassDef | ast.FunctionDef
    return [(node.lineno, node.end_lineno or 0) for node in nodes if not isinstance(node, defined)]


@lru_cache(maxsize=2)
def _run_by_import(source: str) -> tuple[object, ...]:
    """What a module's import runs, without the functions that it makes."""

    def key(code: CodeType) -> tuple[object, ...]:
        made = [each for each in code.co_consts if isinstance(each, CodeType)]
        # Bodies of classes and comprehensions run at once.
        run = [each for each in made if not each.co_flags & inspect.CO_OPTIMIZED or each.co_name in _AT_ONCE]
        constants = [each.co_name if isinstance(each, CodeType) else each for each in code.co_consts]
        return (code.co_code, code.co_names, repr(constants), *map(key, run))

    return key(compile(source, "module", "exec", dont_inherit=True))


def chosen(folders: Sequence[str], count: int, seed: int) -> list[Change]:
    """`count` changes of the folders' files, the same for the same seed and code."""
    files = sorted(str(path.relative_to(PACKAGE)) for path in PACKAGE.rglob("*.py"))
    kinds: dict[str, list[Change]] = {}
    for file in files:
        if file.startswith(tuple(folders)):
            for change in changes(file):
                kinds.setdefault(change.kind, []).append(change)
    chooser, found = random.Random(seed), list[Change]()
    while len(found) < count and kinds:
        kind = chooser.choice(sorted(kinds))
        left = kinds[kind]
        change = left.pop(chooser.randrange(len(left)))
        if not left:
            del kinds[kind]
        if _is_other_code(change):
            found.append(change)
    return found
