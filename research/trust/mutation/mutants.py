"""Planted errors: a seeded list of small changes to the bodies of functions."""

from __future__ import annotations

import ast
import copy
import gc
import os
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import CodeType, FunctionType

from research.publishing.paper import ROOT

SOURCE = ROOT / "src" / "leanbayes"

_COMPARED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
    ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
_COMPUTED: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult, ast.Mod: ast.FloorDiv, ast.Pow: ast.Mult, ast.MatMult: ast.Mult,
    ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
}  # fmt: skip
_SPOKEN = {"require", "require_choice", "require_count", "require_positive", "warn", "check_usage"}
"""Calls that only refuse or warn: their sentences are not mutated."""

_SYMMETRIC = {"max", "min", "torch.maximum", "torch.minimum"}


@dataclass(frozen=True)
class Mutant:
    """One change of one function.

    Attributes:
        file: its file, below the package.
        function: qualified name of the outermost function or method.
        line: first line of that function, decorators included, by which its code is found.
        at: line of the change.
        kind: of change.
        index: number of the change among those of the function.
        before: source of the changed part.
        after: what it becomes.
    """

    file: str
    function: str
    line: int
    at: int
    kind: str
    index: int
    before: str
    after: str

    @property
    def name(self) -> str:
        """Identifies the mutant."""
        return f"{self.file}:{self.at} {self.function} #{self.index} {self.kind}"

    @property
    def key(self) -> tuple[str, int]:
        """File and first line of the function, by which calls of it are found."""
        return self.file, self.line

    def install(self) -> bool:
        """Change the living function; ``False`` if it is not found or may not be changed."""
        try:
            code = self.code()
        except (LookupError, SyntaxError):
            return False
        living = living_functions().get(self.key, [])
        if any(len(f.__code__.co_freevars) != len(code.co_freevars) for f in living):
            return False
        for function in living:
            function.__code__ = code
        return bool(living)

    def code(self) -> CodeType:
        """The code of the changed function."""
        path = SOURCE / self.file
        tree = ast.parse(_source(path))
        for owner, function in _functions(tree):
            if owner == self.function and function.lineno == self._def_line(function):
                _apply(function, self.index)
        ast.fix_missing_locations(tree)
        return _found(compile(tree, str(path), "exec"), self.line, self.function)

    def _def_line(self, function: ast.FunctionDef) -> int:
        return function.lineno if _first_line(function) == self.line else -1


@cache
def living_functions() -> dict[tuple[str, int], list[FunctionType]]:
    """Live functions of the package, by file and first line; asked first before a freeze."""
    root = str(SOURCE) + os.sep
    found: dict[tuple[str, int], list[FunctionType]] = {}
    for each in gc.get_objects():
        if type(each) is FunctionType and each.__code__.co_filename.startswith(root):
            code = each.__code__
            key = (code.co_filename.removeprefix(root), code.co_firstlineno)
            found.setdefault(key, []).append(each)
    return found


@cache
def _source(path: Path) -> str:
    """The text of a file as it was at first, also if it is edited during a study."""
    return path.read_text(encoding="utf-8")


def _first_line(function: ast.FunctionDef) -> int:
    return min([function.lineno, *(d.lineno for d in function.decorator_list)])


def _found(code: CodeType, line: int, function: str) -> CodeType:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            if constant.co_firstlineno == line and constant.co_qualname == function:
                return constant
            try:
                return _found(constant, line, function)
            except LookupError:
                continue
    raise LookupError(f"{function} is not in the compiled file")


def _functions(tree: ast.AST, prefix: str = "") -> Iterator[tuple[str, ast.FunctionDef]]:
    """Functions and methods that lie in no other function."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef):
            yield prefix + node.name, node
        elif isinstance(node, ast.ClassDef):
            yield from _functions(node, f"{prefix}{node.name}.")


Change = tuple[str, ast.AST, ast.AST, Callable[[], None]]
"""Kind, part before, part after, and what changes the tree."""


def _changes(function: ast.FunctionDef) -> Iterator[Change]:
    for parent in _walk(function):
        yield from _within(parent)
        for field, body in ast.iter_fields(parent):
            if isinstance(body, list) and field in {"body", "orelse"}:
                yield from _removed(body)


def _walk(node: ast.AST) -> Iterator[ast.AST]:
    """Every part but annotations, defaults, docstrings, raised errors and refusals."""
    yield node
    for field, value in ast.iter_fields(node):
        if field in {"decorator_list", "returns", "annotation", "args"} and not isinstance(
            node, ast.Call
        ):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and not _is_spoken(child):
                yield from _walk(child)


def _is_spoken(node: ast.AST) -> bool:
    if isinstance(node, ast.Raise | ast.JoinedStr | ast.Assert):
        return True
    if not isinstance(node, ast.Call):
        return False
    name = node.func.attr if isinstance(node.func, ast.Attribute) else ast.unparse(node.func)
    return name in _SPOKEN


def _within(node: ast.AST) -> Iterator[Change]:
    if isinstance(node, ast.Compare):
        for i, op in enumerate(node.ops):
            if type(op) in _COMPARED:
                yield _replaced("comparison", node, node.ops, i, _COMPARED[type(op)]())
    elif isinstance(node, ast.BinOp) and type(node.op) in _COMPUTED:
        yield _set("arithmetic", node, "op", _COMPUTED[type(node.op)]())
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        yield _set("sign", node, "op", ast.UAdd())
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield _set("negation", node, "operand", ast.UnaryOp(ast.Not(), node.operand))
    elif isinstance(node, ast.BoolOp):
        other = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        yield _set("connective", node, "op", other)
    elif isinstance(node, ast.Constant):
        value = _other_constant(node.value)
        if value is not None:
            yield _set("constant", node, "value", value)
    elif (
        isinstance(node, ast.Call)
        and len(node.args) >= 2
        and ast.unparse(node.func) not in _SYMMETRIC
    ):
        first, second = node.args[:2]
        if not isinstance(first, ast.Starred) and not isinstance(second, ast.Starred):
            yield _set("swapped arguments", node, "args", [second, first, *node.args[2:]])


def _other_constant(value: object) -> object:
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1
    return value * 1.5 + 0.5 if isinstance(value, float) else None


def _removed(body: list[ast.stmt]) -> Iterator[Change]:
    for i, statement in enumerate(body):
        assigned = isinstance(statement, ast.AugAssign)
        called = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call)
        if (assigned or called) and not _is_spoken(getattr(statement, "value", statement)):
            yield _replaced("removed statement", statement, body, i, ast.Pass())


def _set(kind: str, node: ast.AST, field: str, value: object) -> Change:
    after = copy.deepcopy(node)
    setattr(after, field, copy.deepcopy(value))
    return kind, copy.deepcopy(node), after, lambda: setattr(node, field, value)


def _replaced(kind: str, node: ast.AST, items: list, index: int, value: ast.AST) -> Change:  # type: ignore[type-arg]
    after: ast.AST = value
    if isinstance(node, ast.Compare):
        after = copy.deepcopy(node)
        after.ops[index] = value  # type: ignore[call-overload]
    return kind, copy.deepcopy(node), after, lambda: items.__setitem__(index, value)


def _apply(function: ast.FunctionDef, index: int) -> None:
    list(_changes(function))[index][3]()


def mutants_of(path: Path) -> list[Mutant]:
    """Every mutant of a file."""
    tree = ast.parse(_source(path))
    file = path.relative_to(SOURCE).as_posix()
    return [
        Mutant(
            *(file, name, _first_line(function), getattr(before, "lineno", function.lineno)),
            *(kind, index, ast.unparse(before), ast.unparse(after)),
        )
        for name, function in _functions(tree)
        for index, (kind, before, after, _) in enumerate(_changes(function))
        if ast.unparse(before) != ast.unparse(after)
    ]


def chosen(folder: str, count: int, seed: int) -> list[Mutant]:
    """A seeded choice of the mutants of a folder of the package."""
    every = [m for path in sorted((SOURCE / folder).rglob("*.py")) for m in mutants_of(path)]
    return random.Random(f"{folder} {seed}").sample(every, min(count, len(every)))
