"""A page for each package, with a section for each of its public modules.

Sphinx writes a list of all pages into each page, so a page a module would take most of the time of a build.
"""

from __future__ import annotations

import ast
import inspect
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from pkgutil import walk_packages
from types import ModuleType

import flower_vfl

FOLDER = "reference/api"
_NO_LIBRARY = ("flower_vfl.__main__",)


def modules() -> list[str]:
    """Return the names of all public modules, packages before what is in them."""
    found = (module.name for module in walk_packages(flower_vfl.__path__, "flower_vfl."))
    public = (name for name in found if name not in _NO_LIBRARY and "._" not in name)
    return ["flower_vfl", *sorted(public)]


def public_names(module: str) -> list[str]:
    """Return the public classes and functions that a module defines."""
    content = vars(import_module(module))
    return [
        name
        for name, value in content.items()
        if not name.startswith("_")
        and (inspect.isclass(value) or inspect.isroutine(value))
        and getattr(value, "__module__", None) == module
        and getattr(value, "__name__", None) == name
    ]


def _title(module: str) -> str:
    return (import_module(module).__doc__ or "").strip().splitlines()[0]


def _described_value(package: ModuleType, name: str) -> str:
    """Return the first line of the docstring below an assignment in the package or where it is imported from."""
    for module in (package, *(import_module(home) for home in _homes(package, name))):
        body = ast.parse(inspect.getsource(module)).body
        for statement, after in pairwise(body):
            targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
            if any(getattr(target, "id", "") == name for target in targets) and isinstance(after, ast.Expr):
                text = getattr(after.value, "value", None)
                if isinstance(text, str):
                    return text.split("\n")[0].replace("|", "\\|")
    raise LookupError(f"{package.__name__}.{name} has no docstring below its assignment")


def _homes(package: ModuleType, name: str) -> list[str]:
    """Return the modules that a package's imports take a name from, also those for type checkers alone."""
    imports = [node for node in ast.walk(ast.parse(inspect.getsource(package))) if isinstance(node, ast.ImportFrom)]
    return [str(node.module) for node in imports if any(alias.name == name for alias in node.names)]


def _exported(module: str) -> list[str]:
    """Return a table of what a package hands on from its modules."""
    package = import_module(module)
    rows = []
    for name in getattr(package, "__all__", []):
        value = getattr(package, name)
        home = getattr(value, "__module__", module)
        called = inspect.isclass(value) or inspect.isroutine(value)
        if called and home.startswith("flower_vfl"):
            kind = "class" if inspect.isclass(value) else "func"
            what = (inspect.getdoc(value) or "").split("\n")[0].replace("|", "\\|")
            rows.append(f"| {{py:{kind}}}`{name} <{home}.{value.__qualname__}>` | {what} |")
        else:
            rows.append(f"| `{name}` | {_described_value(package, name)} |")
    return ["## Names", "", "| name | what it is |", "|---|---|", *rows, ""] if rows else []


def _is_package(module: str) -> bool:
    return hasattr(import_module(module), "__path__")


def packages() -> list[str]:
    """Return the names of all public packages, the outer ones before what is in them."""
    return [name for name in modules() if _is_package(name)]


def page(package: str) -> str:
    """Return the page of a package: what it hands on, its packages, and a section for each of its modules."""
    children = [name for name in modules() if name.rpartition(".")[0] == package]
    inner = [name for name in children if _is_package(name)]
    lines = [f"# {package}", "", *_described(package), *_exported(package)]
    if inner:
        listed = [f"- {{py:mod}}`{name}`: {_title(name)}" for name in inner]
        lines += ["## Packages", "", *listed, "", "```{toctree}", ":hidden:", "", *inner, "```", ""]
    for module in children:
        if module not in inner:
            lines += [f"## {module}", "", *_described(module)]
    return "\n".join(lines)


def _described(module: str) -> list[str]:
    return ["```{eval-rst}", f".. automodule:: {module}", "```", ""]


def plain_commands(app: object, what: str, name: str, value: object, options: object, lines: list[str]) -> None:
    """Show the paragraphs of a command's help that keep their lines as they are."""
    text = "\n".join(lines)
    for paragraph in text.split("\n\n"):
        if paragraph.startswith("\b\n"):
            kept = paragraph.removeprefix("\b\n").replace("\n", "\n   ")
            text = text.replace(paragraph, f"::\n\n   {kept}")
    lines[:] = text.split("\n")


def write_pages(docs: Path) -> None:
    """Write the pages of all packages, and remove those of packages that are gone."""
    folder = docs / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    pages = {folder / f"{package}.md": page(package) for package in packages()}
    for old in folder.glob("*.md"):
        if old not in pages:
            old.unlink()
    for path, text in pages.items():
        if not path.exists() or path.read_text(encoding="utf8") != text:
            path.write_text(text, encoding="utf8")


def overview() -> str:
    """Return a list of the packages, and where their pages are."""
    tops = [name for name in packages() if name.count(".") == 1]
    listed = [f"- {{py:mod}}`{name}`: {_title(name)}" for name in tops]
    return "\n".join([*listed, "", "```{toctree}", ":hidden:", "", "api/flower_vfl", "```"])
