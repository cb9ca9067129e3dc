"""Docstrings, messages and pages are plain technical English, without private metaphors."""

import ast
import itertools
import re
from collections.abc import Container, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = (
    *("flower_vfl", "strategies", "simulations"),
    *("examples/own_methods", "docs/extensions", "studies", "benchmarks"),
)
PAGES = ("*.md", "docs/**/*.md", "examples/**/*.md", "benchmarks/*.md", "tests/**/*.md")
ON_PAGES = {"cards"}
"""Banned words that pages use in their usual meaning: cards of a report, credit cards."""

LIBRARY = FOLDERS[:3]
TEMPLATES = "flower_vfl/reports/templates"
FIRST_WORDS = {"What", "Who", "Whether", "How", "Where", "Which", "Whose"}
BANNED = {
    "is told": "receives",
    "are told": "receive",
    "was told": "received",
    "hears": "receives",
    "heard": "received",
    "remembers": "keeps (row memory)",
    "forgets": "drops",
    "forgotten": "dropped",
    "what came": "what was received",
    "comes again": "recurs",
    "come again": "recur",
    "anew": "again, fresh, from a new seed",
    "rehearsal": "trial step",
    "rehearsed": "tried",
    "looks at": "reads, uses, checks",
    "look at": "read, use, check",
    "looked at": "read, used, checked",
    "looks for": "detects, searches",
    "looked for": "detected",
    "alike": "equal, in the same way",
    "knows nothing": "without information, random",
    "know nothing": "without information, random",
    "says nothing": "is empty, trivial, uninformative",
    "says of itself": "reports, claims",
    "by heart": "overfitted",
    "stranger": "unknown party",
    "cards": "GPUs",
}
"""Private metaphors, and the words of the field in their place."""

OF_EACH_DATA_SET = {"CLASSES", "DIGESTS", "PACKAGED"}
"""Constants that each module of a data set has: class names, digests of its files, the folder of its package."""

NAMES = {"told", "said", "hears", "heard", "cards", "on_card"}
"""Identifiers that name no thing of the field: write scores, answer, side rows, progress, GPU."""

_BANNED = re.compile(rf"\b({'|'.join(BANNED)})\b".replace(" ", r"\s+"))
_CODE = re.compile(r"<[^>]*>|\{[{%#].*?[}%#]\}", re.DOTALL)
_BLOCK = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)


def texts(tree: ast.AST) -> Iterator[tuple[int, str, bool]]:
    """Yield the line and the text of all docstrings and of messages, which have several words; true for docstrings."""
    documented = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value.strip():
            yield node.lineno, node.value, id(node) in documented


def beginnings(text: str) -> Iterator[tuple[int, str]]:
    """Yield the offset of the line and the first word of a docstring and of each entry of its sections."""
    yield 0, text.split(maxsplit=1)[0].strip(",.:;")
    lines = text.splitlines()
    for place, (name, entry) in enumerate(itertools.pairwise(lines), start=1):
        indents = [len(line) - len(line.lstrip()) for line in (name, entry)]
        if name.strip() and indents[1] > indents[0] > 0 and entry.strip():
            yield place, entry.split()[0].strip(",.:;")


def problems(source: str) -> list[tuple[int, str]]:
    """Return the lines of a module with an indirect question as docstring or entry of one, or with a banned word."""
    found = []
    for line, text, documents in texts(ast.parse(source)):
        for offset, first in beginnings(text) if documents else ():
            if first in FIRST_WORDS:
                found.append(
                    (line + offset, f"it begins with {first!r}: begin with an imperative verb or a noun phrase")
                )
        found.extend((line + inside, words) for inside, words in banned(text))
    return found


def banned(text: str, allowed: Container[str] = ()) -> Iterator[tuple[int, str]]:
    """Yield the offset of the line of each banned word, which may be broken over two lines, and what to write."""
    for match in _BANNED.finditer(text):
        words = " ".join(match[0].split())
        if words in allowed:
            continue
        yield text.count("\n", 0, match.start()), f"{words!r}: write {BANNED[words]!r} or the like"


def prose(template: str) -> str:
    """Return a template without its tags and expressions; lines stay."""
    return _CODE.sub(lambda match: "\n" * match[0].count("\n"), template)


def without_code(page: str) -> str:
    """Return a Markdown page without its blocks of code; lines stay."""
    return _BLOCK.sub(lambda match: "\n" * match[0].count("\n"), page)


def identifiers(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield the line and the name of all functions, classes, parameters, variables and attributes that are defined."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.lineno, node.name
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.attr


def modules() -> list[Path]:
    """Return the modules whose text is checked, relative to the project."""
    return [path.relative_to(ROOT) for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]


def test_docstrings_and_messages_are_plain_english():
    found = [
        f"{path}:{line}: {words}"
        for path in modules()
        for line, words in problems((ROOT / path).read_text(encoding="utf8"))
    ]
    assert not found, "\n".join(found)


def test_the_prose_of_templates_is_plain_english():
    paths = sorted((ROOT / TEMPLATES).glob("*.html.j2"))
    found = [
        f"{path.relative_to(ROOT)}:{1 + offset}: {words}"
        for path in paths
        for offset, words in banned(prose(path.read_text(encoding="utf8")))
    ]
    assert paths
    assert not found, "\n".join(found)


def test_pages_are_plain_english():
    paths = sorted({path for pattern in PAGES for path in ROOT.glob(pattern) if "_build" not in path.parts})
    found = [
        f"{path.relative_to(ROOT)}:{1 + offset}: {words}"
        for path in paths
        for offset, words in banned(without_code(path.read_text(encoding="utf8")), allowed=ON_PAGES)
    ]
    assert len(paths) > 100
    assert not found, "\n".join(found)


def test_banned_words_on_a_page_are_found_outside_of_code():
    text = "Two cards.\n```text\nIt knows nothing.\n```\nIt looks\nat rows."
    assert [line for line, _ in banned(without_code(text), allowed=ON_PAGES)] == [4]


def test_banned_words_in_a_template_are_found_in_its_prose_alone():
    text = '<p class="cards"\nid="x">{{ cards }}\nA rule that knows\nnothing</p>'
    assert [line for line, _ in banned(prose(text))] == [2]


@pytest.mark.parametrize(
    ("source", "line"),
    [
        ('"""What a run leaves."""', 1),
        ('def f():\n    """Whether it is so."""', 2),
        ('A = 1\n"""How many there are."""', 2),
        ('def f():\n    """Do it.\n\n    Parameters\n    ----------\n    n : int\n        How many.\n    """', 7),
        ('class A:\n    """A party.\n\n    It hears what is sent.\n    """', 4),
        ('raise ValueError("the party looks at its rows")', 1),
        ('raise ValueError(f"party {name} comes again")', 1),
    ],
)
def test_a_planted_mistake_is_found_at_its_line(source, line):
    assert [found for found, _ in problems(source)] == [line]


def test_names_and_plain_sentences_are_no_mistakes():
    assert not problems('"""Return the rows of a step."""\nname = "remembers"\nwords = "a row that recurs"')


def test_identifiers_are_terms_of_the_field():
    texts = {path: (ROOT / path).read_text(encoding="utf8") for path in modules()}
    possible = re.compile("|".join(NAMES), re.IGNORECASE)  # only such a text is parsed
    found = [
        f"{path}:{line}: {name}"
        for path, text in texts.items()
        if possible.search(text)
        for line, name in identifiers(ast.parse(text))
        if name.strip("_").lower() in NAMES
    ]
    assert not found, "\n".join(found)


def definitions(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Yield the public classes, type aliases and constants of a module with their definitions."""
    guarded = [line for node in tree.body if isinstance(node, ast.If) for line in node.body]
    for node in [*tree.body, *guarded]:
        if isinstance(node, ast.ClassDef):
            yield node.name, ast.unparse(node)
        elif isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            many = isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple)
            pairs = zip(target.elts, node.value.elts, strict=True) if many else [(target, node.value)]
            yield from ((name.id, ast.unparse(value)) for name, value in pairs if isinstance(name, ast.Name))


def test_a_name_of_a_class_an_alias_or_a_constant_has_one_meaning():
    meanings: dict[str, dict[str, str]] = {}
    for path in modules():
        if path.parts[0] in LIBRARY:
            for name, text in definitions(ast.parse((ROOT / path).read_text(encoding="utf8"))):
                if name[0].isupper() and name not in OF_EACH_DATA_SET:
                    meanings.setdefault(name, {})[text] = str(path)
    found = [f"{name}: {', '.join(texts.values())}" for name, texts in meanings.items() if len(texts) > 1]
    assert not found, "\n".join(found)
