"""A page for each public module."""

from __future__ import annotations

import inspect
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages

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
            rows.append(f"| `{name}` | |")
    return ["## Names", "", "| name | what it is |", "|---|---|", *rows, ""] if rows else []


def page(module: str) -> str:
    """Return the page of a module; that of a package leads to its modules."""
    children = [name for name in modules() if name.rpartition(".")[0] == module]
    lines = [f"# {module}", "", "```{eval-rst}", f".. automodule:: {module}", "```", ""]
    if hasattr(import_module(module), "__path__"):
        lines += _exported(module)
    if children:
        listed = [f"- {{py:mod}}`{name}`: {_title(name)}" for name in children]
        lines += ["## Modules", "", *listed, "", "```{toctree}", ":hidden:", "", *children, "```", ""]
    return "\n".join(lines)


def plain_commands(app: object, what: str, name: str, value: object, options: object, lines: list[str]) -> None:
    """Show the paragraphs of a command's help that keep their lines as they are."""
    text = "\n".join(lines)
    for paragraph in text.split("\n\n"):
        if paragraph.startswith("\b\n"):
            kept = paragraph.removeprefix("\b\n").replace("\n", "\n   ")
            text = text.replace(paragraph, f"::\n\n   {kept}")
    lines[:] = text.split("\n")


def write_pages(docs: Path) -> None:
    """Write the pages of all modules, and remove those of modules that are gone."""
    folder = docs / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    pages = {folder / f"{module}.md": page(module) for module in modules()}
    for old in folder.glob("*.md"):
        if old not in pages:
            old.unlink()
    for path, text in pages.items():
        if not path.exists() or path.read_text(encoding="utf8") != text:
            path.write_text(text, encoding="utf8")


def overview() -> str:
    """Return a list of the packages, and where their pages are."""
    tops = [name for name in modules() if name.count(".") == 1]
    listed = [f"- {{py:mod}}`{name}`: {_title(name)}" for name in tops]
    return "\n".join([*listed, "", "```{toctree}", ":hidden:", "", "api/flower_vfl", "```"])
