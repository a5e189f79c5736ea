"""Tests of the house style: docstrings that state the return value, and files of readable length."""

import ast
import itertools
import re
from collections.abc import Iterator
from pathlib import Path

from syntax import nodes

ROOT = Path(__file__).parents[1]
SOURCES = sorted(
    path
    for folder in ("tensorprimat", "perf", "tools", "tests")
    for path in (ROOT / folder).rglob("*.py")
    if not {"__pycache__"} & set(path.parts)
) + sorted(ROOT.glob("*.py"))
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
QUESTION = re.compile(r"(What|Whether|How|Who|Whom|Whose|Where|Why|When|Which)\b")
MOST_LINES = 600
LONG_FILES: dict[str, int] = {}  # longest length so far; shorten, never raise


def docstrings(text: str) -> Iterator[tuple[int, str]]:
    """Yield the line and the text of every docstring."""
    for node in nodes(text):
        if isinstance(node, DOCUMENTED) and (docstring := ast.get_docstring(node)):
            yield node.body[0].lineno, docstring


VERBS = frozenset(re.findall(r"\w+", """
    Add Advance Allocate Apply Ask Begin Benchmark Build Call Cancel Change Check Choose Clean Close Collect Compare
    Compile Compute Connect Continue Convert Copy Correct Count Create Cut Decide Disable Discard Divide Do Download
    Drain Draw Drop End Ensure Enter Escape Estimate Expect Extract Fail Feed Fetch Fill Find Fit Fold Follow Forget
    Fork Format Free Fuzz Gather Give Group Hand Handle Have Hold Ignore Import Initialise Inject Insert Install
    Join Judge Keep Kill Leave Let Limit List Load Look Make Mark Mask Match Measure Merge Move Name Note Open Order
    Parse Pool Prepare Pretrain Print Profile Project Provide Put Queue Raise Read Reap Record Reduce Refuse
    Register Release Remove Rename Render Replace Report Request Reset Restore Return Run Save Say Scale Search Send
    Set Shade Show Simulate Skip Sort Split Start State Stop Submit Summarise Suppress Survey Sweep Take Time Train
    Trim Try Turn Update Use Verify Wait Warn Watch Wrap Write Yield
"""))  # fmt: skip
"""Verbs in the imperative with which the docstring of a function may begin; add one where it is missing."""
_LIKE_FIELDS = {"property", "cached_property", "fixture"}


def begins_without_a_verb(text: str) -> Iterator[tuple[int, str]]:
    """Yield the docstrings of functions whose first word is no verb in the imperative, except of tests.

    A property and a fixture may have a noun.
    """
    for node in nodes(text):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and (docstring := ast.get_docstring(node)):
            called = [getattr(one, "func", one) for one in node.decorator_list]
            decorators = {getattr(one, "id", getattr(one, "attr", None)) for one in called}
            of_test = node.name.startswith("test_")
            if not of_test and not decorators & _LIKE_FIELDS and docstring.split()[0].rstrip(",.:;") not in VERBS:
                yield node.body[0].lineno, docstring


def notes(text: str) -> Iterator[tuple[int, str]]:
    """Yield the line and the text of every string below a field or a constant, which documents it."""
    for node in nodes(text):
        body = getattr(node, "body", None)
        for target, note in itertools.pairwise(body if isinstance(body, list) else ()):
            if not isinstance(target, (ast.Assign, ast.AnnAssign)) or not isinstance(note, ast.Expr):
                continue
            if isinstance(note.value, ast.Constant) and isinstance(note.value.value, str):
                yield note.lineno, note.value.value


def begins_badly(docstring: str) -> bool:
    """Return True if a docstring begins with a question word or a lower-case letter."""
    return bool(QUESTION.match(docstring)) or docstring[0].islower()


def test_a_counted_noun_has_its_plural_by_its_number():
    """One node, two nodes: `quantities.counted` writes both, and no text leaves the choice to its reader."""
    undecided = re.compile(r"\} (?:\w+ )*\w+\((?:s|es)\)")
    assert undecided.search('f"{count} node(s)"')
    texts = [path for path in SOURCES if "tests" not in path.parts] + [
        ROOT / "README.md",
        *(ROOT / "docs").rglob("*.md"),
    ]
    assert not [path for path in texts if undecided.search(path.read_text())]


def test_no_docstring_begins_with_a_question_word_or_a_lower_case_letter():
    bad = [
        f"{path.relative_to(ROOT)}:{line}: {docstring.splitlines()[0]}"
        for path in SOURCES
        for line, docstring in docstrings(path.read_text())
        if begins_badly(docstring)
    ]
    assert not bad, "begin with a verb (functions) or a noun (classes, modules):\n" + "\n".join(bad)


def test_no_note_of_a_field_or_constant_begins_with_a_question_word():
    bad = [
        f"{path.relative_to(ROOT)}:{line}: {note.splitlines()[0]}"
        for path in SOURCES
        for line, note in notes(path.read_text())
        if QUESTION.match(note)
    ]
    assert not bad, "begin with a noun, or with True if for a flag:\n" + "\n".join(bad)


def test_a_docstring_of_a_function_begins_with_a_verb():
    bad = [
        f"{path.relative_to(ROOT)}:{line}: {docstring.splitlines()[0]}"
        for path in SOURCES
        for line, docstring in begins_without_a_verb(path.read_text())
    ]
    assert not bad, "begin with a verb, such as Return:\n" + "\n".join(bad)


def test_no_file_grows_beyond_its_limit():
    lengths = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in SOURCES}
    long = {name: lines for name, lines in lengths.items() if lines > LONG_FILES.get(name, MOST_LINES)}
    assert not long, f"split these files: {long}"
    assert all(lengths.get(name, 0) > MOST_LINES for name in LONG_FILES), "drop the exception that is not needed"


NUMBER = re.compile(r"[,_]|\.(\d|\{\})|[gGfFeEn%]$")
"""Format of a number: separators, digits or a type; not a width, and not a date."""
IN_BRACES = re.compile(r"\{\w*:[^{}%]*([,_]|\.\d|[gGfFeE%])[^{}]*\}")
IN_PERCENT = re.compile(r"%[+\d]*(\.\d+)?[fge]")
NOT_SHOWN = {("logs/citations.py", "value:,"): "searched for in a log, which may spell a number so"}
"""Module and format → reason why no user sees the number."""


def formats_of_numbers(text: str) -> Iterator[tuple[int, str]]:
    """Yield line and format where code chooses the form of a number: in an f-string, by `format`, or by `%`."""
    every = nodes(text)
    docstrings_and_notes = {id(node.value) for node in every if isinstance(node, ast.Expr)}
    for node in every:
        if isinstance(node, ast.FormattedValue) and isinstance(node.format_spec, ast.JoinedStr):
            parts = [part.value if isinstance(part, ast.Constant) else "{}" for part in node.format_spec.values]
            form = "".join(map(str, parts))
            if NUMBER.search(form) and not form.startswith("%"):
                yield node.lineno, f"{ast.unparse(node.value)}:{form}"
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "format":
            yield node.lineno, ast.unparse(node)
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod) and isinstance(node.left, ast.Constant):
            yield from ((node.lineno, text) for text in [str(node.left.value)] if IN_PERCENT.search(text))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings_and_notes:
            yield from ((node.lineno, text) for text in [node.value] if IN_BRACES.search(text))


def test_only_quantities_chooses_the_form_of_a_number():
    package = ROOT / "tensorprimat"
    found = {
        (path.relative_to(package).as_posix(), form): line
        for path in sorted(package.rglob("*.py"))
        if path != package / "core" / "quantities.py"
        for line, form in formats_of_numbers(path.read_text())
    }
    elsewhere = {key: line for key, line in found.items() if key not in NOT_SHOWN}
    assert not elsewhere, f"use core/quantities: {elsewhere}"
    assert found.keys() == NOT_SHOWN.keys(), "drop the exceptions that are not needed"


FORMATS_IN_SCRIPTS = re.compile(r"\bto(Fixed|Precision|Exponential|LocaleString)\(.*?\)|\bIntl\.")
NOT_SHOWN_BY_SCRIPTS = {
    'toLocaleString("en", { maximumSignificantDigits: forms.digits[kind] })': "digits from core/quantities",
    "toPrecision(forms.digits.tick)": "removes the rounding error of a tick, by the digits from core/quantities",
    "toFixed(1)": "coordinates of a path",
}


JOINED = re.compile(r"""(["']) (and|or) \1\.join\(""")
"""A join that writes "a and b and c": `listed` and `alternatives` of core/quantities write "a, b and c"."""
JOINED_ON_PURPOSE = {
    ("core/quantities.py", "and"), ("core/quantities.py", "or"),
    ("facts/catalogue.py", "or"), ("core/user_facts.py", "or"),  # names and sizes of GPUs: few, and may have a comma
    ("engines/torch/attention.py", "and"), ("engines/torch/observations.py", "and"),  # a value of a result, split again
}  # fmt: skip


def joins(package: Path) -> set[tuple[str, str]]:
    return {
        (path.relative_to(package).as_posix(), match[2])
        for path in sorted(package.rglob("*.py"))
        for match in JOINED.finditer(path.read_text())
    }


def test_only_quantities_writes_an_enumeration(tmp_path):
    assert joins(ROOT / "tensorprimat") == JOINED_ON_PURPOSE
    (tmp_path / "planted.py").write_text("text = ' and '.join(names)")
    assert joins(tmp_path) == {("planted.py", "and")}


def test_scripts_take_the_digits_of_numbers_from_quantities():
    found = {
        match[0]
        for path in (ROOT / "tensorprimat").rglob("*.js")
        for match in FORMATS_IN_SCRIPTS.finditer(path.read_text())
    }
    assert found == set(NOT_SHOWN_BY_SCRIPTS)


def prose(text: str) -> Iterator[tuple[int, str]]:
    """Yield the number and the text of every line of a page outside code blocks, tables and headings."""
    in_code = False
    for number, line in enumerate(text.splitlines(), start=1):
        in_code ^= line.lstrip().startswith("```")
        if not in_code and not line.lstrip().startswith(("|", "#", "<", "!", "```")):
            yield number, line


def test_no_line_of_a_page_is_longer_than_a_line_of_code():
    generated = {"example", "images"}
    pages = [page for page in (ROOT / "docs").rglob("*.md") if not generated & set(page.parts)]
    assert len(pages) > 20
    found = [
        f"{page.relative_to(ROOT)}:{number}: {len(line)} characters"
        for page in pages
        for number, line in prose(page.read_text())
        if len(line) > 120 and " " in line.strip()[:120]
    ]
    assert not found
