"""A lint for tests that depend on the speed of the machine; for its use see `scripts/lint-tests --help`.

sleep   a wait for time to pass, outside of polls for a state and of virtual time
bound   an upper bound in seconds
guard   a guard against hanging that is shorter than `support.live.HANG_S`
finite  work that may be done before the test acts on its guest
excuse  an exception (`# speed: REASON`) that has no reason, or that excuses nothing
"""

from __future__ import annotations

import argparse
import ast
import io
import os
import re
import sys
import tokenize
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path

EPILOG = """\
rules:
  sleep   wait for an event, a state, a file or a line instead (support.live.until, wait_until)
  bound   use a ratio, an order of clock readings, or the fixture `accuracy` instead
  guard   use support.live.HANG_S, which decides no test
  finite  use endless work (ENDLESS_UNITS), or throttle it until the test has acted (THROTTLED_CORES)

An exception has the comment `# speed: REASON` on its line or on the line above.

example:
  scripts/lint-tests tests/agent tests/conftest.py
"""

CLOCKS = frozenset(["time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns"])
VIRTUAL = frozenset(["run_in_virtual_time", "VirtualTimeLoop", "VirtualLoop"])  # code that uses them is in virtual time
GUARDS = frozenset(["timeout", "timeout_s", "within_s", "patience_s"])  # keywords, parameters and class attributes
POSITIONAL = {  # calls whose guard is an argument by position, and its index
    "wait": 0, "join": 0, "result": 0, "settimeout": 0, "set_default_timeout": 0, "timeout": 0, "wait_for": 1,
}  # fmt: skip
INTERVALS = frozenset(["wait", "wait_procs"])  # in a loop that polls, their timeout is the interval
WORK = frozenset(["work_units", "seconds"])  # parameters for the work of a guest
ACTS = re.compile(r"(hold|save|migrate|set_cap|kill|stop|adopt|release|terminate|send_signal)(_|$)")
SECONDS = re.compile(r"(_s|_ms|_ns)$|(^|_)(elapsed|took)(_|$)")
EXCUSE = re.compile(r"#\s*speed:\s*(.*)")
KIT_PACKAGE = "testbed.testing"  # tests of drivers inherit from it, also in other projects
KIT = frozenset(["HANG_S", "ENDLESS_UNITS", "THROTTLED_CORES"])  # names of support.live that tests must use
WRAPPERS = frozenset(["abs", "float", "max", "mean", "median", "min", "round", "sum"])  # of seconds: seconds, too
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)

Function = ast.FunctionDef | ast.AsyncFunctionDef
Loop = ast.While | ast.For | ast.AsyncFor


@dataclass(frozen=True, order=True)
class Finding:
    """A line that depends on speed; an exception may be on any of `lines`."""

    path: Path
    line: int
    code: str
    message: str
    lines: tuple[int, ...] = field(compare=False, default=())

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.code} {self.message}"


def name_of(node: ast.AST) -> str:
    """Return the last part of a name: `b` of `a.b`, of `b` and of `a["b"]`."""
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name) | ast.Subscript(slice=ast.Constant(value=str(name))):
            return name
        case ast.Subscript(value=value):
            return name_of(value)
    return ""


def calls(node: ast.AST) -> Iterator[ast.Call]:
    return (each for each in ast.walk(node) if isinstance(each, ast.Call))


def names_slow(node: ast.AST) -> bool:
    return any(ast.unparse(each) == "pytest.mark.slow" for each in ast.walk(node) if isinstance(each, ast.Attribute))


def reads_clock(node: ast.AST) -> bool:
    return any(name_of(call.func) in CLOCKS and not call.args for call in calls(node))


def tests_state(test: ast.expr) -> bool:
    """Return whether a condition depends on more than the time."""
    match test:
        case ast.BoolOp(values=values):
            return any(tests_state(value) for value in values)
        case ast.UnaryOp(operand=operand):
            return tests_state(operand)
        case ast.Constant():
            return False
    return not (isinstance(test, ast.Compare) and reads_clock(test))


def polls(loop: Loop) -> bool:
    """Return whether a loop ends at a state: by its condition, or by an exit in an `if` or a `try`."""
    if isinstance(loop, ast.While) and tests_state(loop.test):
        return True
    for node in (each for statement in loop.body for each in ast.walk(statement)):
        asks = isinstance(node, ast.Try) or (isinstance(node, ast.If) and tests_state(node.test))
        if asks and any(isinstance(each, ast.Break | ast.Return | ast.Raise) for each in ast.walk(node)):
            return True
    return False


def seconds(node: ast.expr) -> bool:
    """Return whether an expression is a time by its name, or a difference of clock readings."""
    match node:
        case ast.BinOp(op=ast.Sub(), left=left, right=right):
            return reads_clock(node) or seconds(left) or seconds(right)
        case ast.BinOp(op=ast.Add() | ast.Mult() | ast.Div(), left=left, right=right):
            # a rate or a share is no time
            return seconds(left) != seconds(right) if not isinstance(node.op, ast.Add) else seconds(left)
        case ast.Call(func=func, args=args) if name_of(func) in WRAPPERS:
            return any(seconds(arg) for arg in args)
    name = name_of(node)
    return bool(SECONDS.search(name)) and "_per_" not in name


class Module:
    """A parsed file: its definitions, imports and exceptions."""

    def __init__(self, path: Path) -> None:
        self.path = path
        source = path.read_text()
        self.tree = ast.parse(source, str(path))
        self.parents = {child: node for node in ast.walk(self.tree) for child in ast.iter_child_nodes(node)}
        lines = ["", *source.splitlines()]
        self.excuses: dict[int, tuple[int, str]] = {}  # by the line they excuse: the comment's line, the reason
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            if token.type == tokenize.COMMENT and (found := EXCUSE.search(token.string)):
                line = token.start[0]
                while line + 1 < len(lines) and lines[line].lstrip().startswith("#"):
                    line += 1  # a comment on a line of its own is about the next line
                self.excuses[line] = token.start[0], found[1].strip()

    @cached_property
    def definitions(self) -> dict[str, ast.expr | ast.stmt]:
        """The definitions at the top level; for classes with tests also each method, as `Class.method`."""
        found: dict[str, ast.expr | ast.stmt] = {}
        for node in self.tree.body:
            if isinstance(node, (*FUNCTIONS, ast.ClassDef)):
                found[node.name] = node
            elif isinstance(node, ast.Assign | ast.AnnAssign) and node.value:
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                found |= {target.id: node.value for target in targets if isinstance(target, ast.Name)}
            if isinstance(node, ast.ClassDef) and self.has_tests(node):
                found |= {f"{node.name}.{each.name}": each for each in node.body if isinstance(each, FUNCTIONS)}
        return found

    @cached_property
    def imports(self) -> dict[str, tuple[str, str]]:
        """By local name: the module and the name in that module."""
        return {
            alias.asname or alias.name: (node.module, alias.name)
            for node in ast.walk(self.tree)
            if isinstance(node, ast.ImportFrom) and node.module
            for alias in node.names
        }

    @cached_property
    def slow(self) -> bool:
        """Whether the whole module is marked `slow`."""
        return "pytestmark" in self.definitions and names_slow(self.definitions["pytestmark"])

    @staticmethod
    def has_tests(node: ast.ClassDef) -> bool:
        tests = any(isinstance(each, FUNCTIONS) and each.name.startswith("test_") for each in node.body)
        return tests or node.name.startswith("Test")

    def ancestors(self, node: ast.AST) -> Iterator[ast.AST]:
        while node in self.parents:
            node = self.parents[node]
            yield node

    def owner(self, node: ast.AST) -> str:
        """Return the name of the definition that holds a node, an empty string at the top of the module."""
        around = [each for each in (node, *self.ancestors(node)) if isinstance(each, (*FUNCTIONS, ast.ClassDef))]
        names = [each.name for each in reversed(around)]
        return next((name for name in (".".join(names[:2]), *names[:1]) if name in self.definitions), "")

    def polled(self, node: ast.AST) -> bool:
        """Return whether a node is in a loop that polls, in the same function."""
        for each in self.ancestors(node):
            if isinstance(each, (*FUNCTIONS, ast.Lambda)):
                return False
            if isinstance(each, Loop) and polls(each):
                return True
        return False


class Project:
    """The modules of the checked folders, and their uses of each other."""

    def __init__(self, paths: Iterable[Path]) -> None:
        self.checked = sorted({file for path in paths for file in (path.rglob("*.py") if path.is_dir() else [path])})
        self._modules: dict[Path, Module] = {}
        for file in [*self.checked, *(each for path in self.checked for each in path.parent.glob("*.py"))]:
            self.module(file)

    def module(self, path: Path) -> Module:
        if path not in self._modules:
            self._modules[path] = Module(path)
        return self._modules[path]

    @cache  # noqa: B019  # a project lives as long as the program
    def _file(self, importer: Path, module: str) -> Path | None:
        """Return the file of an import: beside the importer, in the folder `tests`, or in KIT_PACKAGE."""
        if f"{module}.".startswith(f"{KIT_PACKAGE}."):
            place = Path(*module.split("."))
            files = (place / "__init__.py", place.with_suffix(".py"))
            found = (above / file for above in importer.resolve().parents for file in files)
            return next((self._known(each) for each in found if each.is_file()), None)
        tests = next((each for each in importer.parents if each.name == "tests"), importer.parent)
        relative = Path(*module.split(".")).with_suffix(".py")
        candidates = [importer.parent / relative, tests / relative]
        return next((each for each in candidates if each.is_file()), None)

    def _known(self, path: Path) -> Path:
        """Return a file by its path on the command line, which is the key of modules."""
        return next((each for each in self._modules if each.resolve() == path), path)

    def lineage(self, module: Module, name: str) -> Iterator[tuple[Module, str]]:
        """Yield the class of a name in a module and what it inherits from."""
        found = self.resolve(module, name)
        node = found and found[0].definitions[found[1]]
        if found and isinstance(node, ast.ClassDef):
            yield found
            for base in node.bases:
                yield from self.lineage(found[0], name_of(base))

    def resolve(self, module: Module, name: str) -> tuple[Module, str] | None:
        """Return the definition of a name: in the module itself, by an import, or among the folder's fixtures."""
        if name in module.definitions:
            return module, name
        if name in module.imports:
            source, original = module.imports[name]
            file = self._file(module.path, source)
            return self.resolve(self.module(file), original) if file else None
        fixtures = module.path.parent / "conftest.py"
        if fixtures in self._modules and fixtures != module.path:
            return self.resolve(self._modules[fixtures], name)
        return None

    @cache  # noqa: B019  # as above
    def _mentions(self, module: Module, owner: str) -> frozenset[tuple[Module, str]]:
        """Return the definitions that a definition names."""
        node = module.definitions[owner]
        parts: list[ast.AST] = [node]
        if isinstance(node, ast.ClassDef) and module.has_tests(node):  # its methods are separate definitions
            parts = [each for each in [*node.bases, *node.body] if not isinstance(each, FUNCTIONS)]
        names: set[str] = set()
        for each in (found for part in parts for found in ast.walk(part)):
            match each:
                case ast.Attribute(value=ast.Name(id="self"), attr=name):
                    names.add(f"{owner.partition('.')[0]}.{name}")
                case ast.Name(id=name) | ast.arg(arg=name):  # an argument may be a fixture
                    names.add(name)
                case ast.Call(func=ast.Attribute(attr="usefixtures"), args=args):
                    names |= {str(arg.value) for arg in args if isinstance(arg, ast.Constant)}
        return frozenset(there for name in names if (there := self.resolve(module, name)))

    @cache  # noqa: B019  # as above
    def uses(self, module: Module, owner: str) -> frozenset[tuple[Module, str]]:
        """Return all definitions that a definition reaches, including itself."""
        reached: set[tuple[Module, str]] = set()
        todo = [(module, owner)]
        while todo:
            if (each := todo.pop()) not in reached:
                reached.add(each)
                todo += self._mentions(*each)
        return frozenset(reached)

    @cache  # noqa: B019  # as above
    def _starts_virtual(self, module: Module, owner: str) -> bool:
        """Return whether a definition, or its class, uses a name that starts virtual time."""
        nodes = [module.definitions[name] for name in (owner, owner.partition(".")[0])]
        return any(each.id in VIRTUAL for node in nodes for each in ast.walk(node) if isinstance(each, ast.Name))

    @cache  # noqa: B019  # as above
    def runs_virtual(self, module: Module, owner: str) -> bool:
        return any(self._starts_virtual(*used) for used in self.uses(module, owner))

    @cached_property
    def slow(self) -> list[Module]:
        """The modules that are marked `slow`."""
        return [module for module in self._modules.values() if module.slow]

    @cached_property
    def _tests(self) -> list[tuple[Module, str]]:
        return [
            (module, name)
            for module in list(self._modules.values())
            for name in module.definitions
            if name.rpartition(".")[2].startswith("test_")
        ]

    @cache  # noqa: B019  # as above
    def virtual(self, module: Module, owner: str) -> bool:
        """Return whether code runs in virtual time: it starts virtual time, or every test that uses it does."""
        if self.runs_virtual(module, owner):
            return True
        users = [self.runs_virtual(*test) for test in self._tests if (module, owner) in self.uses(*test)]
        return bool(users) and all(users)

    def literal(self, module: Module, node: ast.AST) -> bool:
        """Return whether a number is a literal in the source, a constant with such a value, or a sum of them."""
        match node:
            case ast.Constant(value=int() | float() as number):
                return not isinstance(number, bool)
            case ast.UnaryOp(operand=operand):
                return self.literal(module, operand)
            case ast.BinOp(left=left, right=right):
                return self.literal(module, left) and self.literal(module, right)
            case ast.Name(id=name) if name.isupper() and name not in KIT and (found := self.resolve(module, name)):
                value = found[0].definitions[found[1]]
                return value.lineno not in found[0].excuses and self.literal(found[0], value)
        return False


class Check:
    """The rules, for one module."""

    def __init__(self, project: Project, module: Module) -> None:
        self._project = project
        self._module = module

    def findings(self) -> Iterator[Finding]:
        """Yield the findings without an exception, and the invalid exceptions."""
        used: set[int] = set()
        for found in self._found():
            excuses = {line for line in found.lines if line in self._module.excuses}
            used |= excuses
            if not excuses:
                yield found
        constants = {node.lineno for name, node in self._module.definitions.items() if name.isupper()}
        for line, (comment, reason) in self._module.excuses.items():
            if not reason:
                yield Finding(self._module.path, comment, "excuse", "the reason is missing: `# speed: REASON`")
            elif line not in used | constants:
                yield Finding(self._module.path, comment, "excuse", "excuses nothing: remove it")

    def _finding(self, node: ast.expr | ast.stmt | ast.arg, code: str, message: str) -> Finding:
        last = node.end_lineno or node.lineno
        return Finding(self._module.path, node.lineno, code, message, tuple(range(node.lineno, last + 1)))

    def _found(self) -> Iterator[Finding]:
        for node in ast.walk(self._module.tree):
            rules: dict[type[ast.AST], Callable[..., Iterator[Finding]]] = {
                ast.Call: self._call, ast.Assert: self._assert, ast.BinOp: self._deadline,
                ast.FunctionDef: self._function, ast.AsyncFunctionDef: self._function, ast.ClassDef: self._class,
            }  # fmt: skip
            if rule := rules.get(type(node)):
                yield from rule(node)

    def _virtual(self, node: ast.AST) -> bool:
        owner = self._module.owner(node)
        return bool(owner) and self._project.virtual(self._module, owner)

    def _from(self, func: ast.expr, module: str) -> bool:
        """Return whether a function belongs to a module: `module.f`, or `f` imported from the module."""
        match func:
            case ast.Attribute(value=ast.Name(id=name)):
                return name == module
            case ast.Name(id=name):
                return self._module.imports.get(name, ("",))[0] == module
        return False

    # --- sleep and guard

    def _call(self, node: ast.Call) -> Iterator[Finding]:
        name = name_of(node.func)
        own_loop = self._from(node.func, "asyncio")
        if (own_loop and self._virtual(node)) or (name in INTERVALS and self._module.polled(node)):
            return
        zero = bool(node.args) and isinstance(node.args[0], ast.Constant) and not node.args[0].value
        sleeps = name == "sleep" and (own_loop or self._from(node.func, "time")) and not zero
        if name == "wait_for_timeout" or (sleeps and not self._module.polled(node)):
            yield self._finding(node, "sleep", "waits for time, not for an event or a state")
        index = POSITIONAL.get(name, len(node.args))
        guards = [*node.args[index : index + 1], *(each.value for each in node.keywords if each.arg in GUARDS)]
        for guard in guards:
            yield from self._guard(guard)

    def _guard(self, value: ast.expr) -> Iterator[Finding]:
        nothing = isinstance(value, ast.Constant) and not value.value
        if not nothing and self._project.literal(self._module, value):
            yield self._finding(value, "guard", f"{ast.unparse(value)} instead of support.live.HANG_S")

    def _deadline(self, node: ast.BinOp) -> Iterator[Finding]:
        """Find a hand-made guard: a reading of the clock plus some seconds."""
        clock = isinstance(node.op, ast.Add) and isinstance(node.left, ast.Call) and reads_clock(node.left)
        asserted = any(isinstance(each, ast.Assert) for each in self._module.ancestors(node))
        if clock and not asserted and not self._virtual(node):
            yield from self._guard(node.right)

    def _class(self, node: ast.ClassDef) -> Iterator[Finding]:
        for each in node.body:
            if isinstance(each, ast.Assign | ast.AnnAssign) and each.value:
                targets = each.targets if isinstance(each, ast.Assign) else [each.target]
                if any(name_of(target) in GUARDS for target in targets):
                    yield from self._guard(each.value)

    # --- bound

    def _assert(self, node: ast.Assert) -> Iterator[Finding]:
        if self._virtual(node):
            return
        for compare in (each for each in ast.walk(node.test) if isinstance(each, ast.Compare)):
            sides = [compare.left, *compare.comparators]
            for left, operator, right in zip(sides, compare.ops, sides[1:], strict=False):
                lower, upper = (left, right) if isinstance(operator, ast.Lt | ast.LtE) else (right, left)
                if isinstance(operator, ast.Lt | ast.LtE | ast.Gt | ast.GtE) and self._bounded(lower, upper):
                    yield self._finding(node, "bound", f"{ast.unparse(lower)} is bounded by {ast.unparse(upper)}")

    def _bounded(self, lower: ast.expr, upper: ast.expr) -> bool:
        """Return whether a number bounds a time; for clock readings, also as a summand of the bound."""
        if not seconds(lower) or self._project.literal(self._module, lower):
            return False
        bounds = [upper]
        match upper:
            case ast.BinOp(op=ast.Add(), left=left, right=right) if reads_clock(lower) or reads_clock(upper):
                bounds += [left, right]
        nothing = isinstance(upper, ast.Constant) and not upper.value
        return not nothing and any(self._project.literal(self._module, each) for each in bounds)

    # --- finite, and guards that are defaults

    def _function(self, node: Function) -> Iterator[Finding]:
        arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        defaults = [*node.args.defaults, *node.args.kw_defaults]
        for argument, default in zip(arguments[::-1], defaults[::-1], strict=False):
            if argument.arg in GUARDS and default:
                yield from self._guard(default)
        if node.name.startswith("test_") and self._slow(node) and not self._virtual(node):
            yield from self._finite(node)

    def _slow(self, test: Function) -> bool:
        """Return whether a test is marked `slow`: itself, its class, its module, or a class that inherits it."""
        around = [test, *(each for each in self._module.ancestors(test) if isinstance(each, ast.ClassDef))]
        marks = [mark for each in around for mark in each.decorator_list]
        if any(names_slow(mark) for mark in marks) or self._module.slow:
            return True
        suites = {(self._module, each.name) for each in around if isinstance(each, ast.ClassDef)}
        return any(
            each in suites
            for module in self._project.slow
            for name in module.imports
            for each in self._project.lineage(module, name)
        )

    def _finite(self, test: Function) -> Iterator[Finding]:
        acts = next((name_of(call.func) for call in calls(test) if ACTS.match(name_of(call.func))), "")
        if not acts or any("THROTTLED" in name_of(each) for each in ast.walk(test)):
            return
        for node in calls(test):
            for value in self._work(test, node):
                if self._project.literal(self._module, value):
                    yield self._finding(node, "finite", f"{ast.unparse(value)} may be done before `{acts}`")
                    return

    def _work(self, test: Function, call: ast.Call) -> Iterator[ast.expr]:
        """Yield the arguments of a call that set the work of a guest."""
        yield from (each.value for each in call.keywords if each.arg in WORK)
        of_suite = isinstance(call.func, ast.Attribute) and name_of(call.func.value) == "self"
        if of_suite or isinstance(call.func, ast.Name):
            suite = self._module.owner(test).partition(".")[0] if of_suite else ""
            if helper := self._helper(name_of(call.func), suite):
                parameters = [each.arg for each in helper.args.args][of_suite:]
                yield from (value for each, value in zip(parameters, call.args, strict=False) if each in WORK)

    def _helper(self, name: str, suite: str) -> Function | None:
        """Return the function of a name, or the method that a class of tests has or inherits."""
        todo = [self._project.resolve(self._module, suite or name)]
        while todo:
            if not (found := todo.pop()):
                continue
            module, owner = found
            node = module.definitions[owner]
            for each in node.body if isinstance(node, ast.ClassDef) else [node]:
                if isinstance(each, FUNCTIONS) and each.name == name:
                    return each
            if isinstance(node, ast.ClassDef):
                todo += [self._project.resolve(module, name_of(base)) for base in node.bases]
        return None


def main(arguments: list[str] | None = None) -> int:
    """Print the findings; returns 1 if there are any, 2 if a file cannot be checked, else 0."""
    parser = argparse.ArgumentParser(
        prog="lint-tests",
        description="Find tests that depend on the speed of the machine.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    tests = Path(os.path.relpath(Path(__file__).resolve().parents[1]))
    checked = [tests, tests.parent.joinpath(*KIT_PACKAGE.split("."))]
    parser.add_argument(
        "path", nargs="*", type=Path, default=checked, help="files and folders (default: tests/ and testbed/testing/)"
    )
    paths: list[Path] = parser.parse_args(arguments).path
    if missing := [path for path in paths if not path.exists()]:
        parser.error(f"no such file or folder: {missing[0]}")
    try:
        project = Project(paths)
    except (SyntaxError, ValueError) as error:  # ValueError: not text at all
        parser.error(f"not Python: {error}")
    findings = sorted(each for file in project.checked for each in Check(project, project.module(file)).findings())
    for each in findings:
        sys.stdout.write(f"{each}\n")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
