"""Every command of README and docs/ runs: a page's unmarked bash and Python blocks are one script.

A block that needs a GPU, a cluster or the network is marked by a comment before it: <!-- needs a GPU -->.
"""

import gzip
import importlib
import os
import re
import shutil
import subprocess
from pathlib import Path

import plausible
import pytest
import typer
from each import in_each

from tensorprimat.cli import COMMANDS, earlier
from tensorprimat.storage import store

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
BLOCK = re.compile(r"(<!-- needs [^>]*-->\n)?```(bash|console|python)\n(.*?)```", re.S)


def script_of(page):
    """Return the unmarked blocks of commands and of Python of a page as one script."""
    return "\n".join(
        f"python3 - <<'PYTHON'\n{block}PYTHON\n" if language == "python" else block
        for mark, language, block in BLOCK.findall(page)
        if not mark
    )


SCRIPTS = {
    str(path.relative_to(ROOT)): script
    for path in (ROOT / "README.md", *sorted(DOCS.rglob("*.md")))
    if (script := script_of(path.read_text()))
}
TRAINING = ("docs/tutorial.md", "docs/how-to/own-model.md", "docs/how-to/inside-a-step.md")
"""Pages whose commands train for a minute: `make test-docs`."""


def megatron_log(*, seconds):
    """Return a log of 60 iterations in Megatron's format."""
    return "".join(
        f" [2026-01-16 07:{10 + i // 60:02d}:{i % 60:02d}] iteration {i:8d}/{60:8d} | consumed samples: {128 * i:9d} | "
        f"elapsed time per iteration (ms): {1000 * seconds + i % 7:.1f} | learning rate: 1.0E-05 | "
        f"global batch size:   128 | lm loss: {10 - i / 60:.6E} | loss scale: 1.0 | number of nan iterations:   0 |\n"
        for i in range(1, 61)
    )


@pytest.fixture(scope="module")
def prepared(tmp_path_factory, warm_python):
    """A folder of results and logs under the names that the pages use, with `tprimat` and `python3` on the path."""
    folder = tmp_path_factory.mktemp("docs")
    for place, machine, seconds in (
        ("output", "h100", 12.8), ("output", "mi300x", 13.9), ("base", "h100", 12.8), ("new", "h100", 12.83),
    ):  # fmt: skip
        result = plausible.result(machine, seconds=seconds, runs=5, steps=20, seed=int(100 * seconds))
        store.save(result, folder / place, stamp=store.new_stamp())
    (folder / "training_llama.log").write_text(megatron_log(seconds=9.8))
    (folder / "train.log").write_text(megatron_log(seconds=9.8))
    (folder / "run1.log").write_text(megatron_log(seconds=9.8))
    (folder / "run2.log.gz").write_bytes(gzip.compress(megatron_log(seconds=9.9).encode()))
    (folder / "ranks").mkdir()
    (folder / "ranks" / "rank0.txt").write_text(megatron_log(seconds=9.7))
    for name in ("amd-logs", "nvi-logs"):
        (folder / name).mkdir()
        shutil.copy(folder / "run1.log", folder / name / "training_llama.log")
    for path in (*ROOT.glob("*.py"), *ROOT.glob("*.sh")):
        (folder / path.name).symlink_to(path)
    (folder / "bin").mkdir()
    for name, arguments in (("python3", ""), ("tprimat", " -m tensorprimat")):
        (folder / "bin" / name).write_text(f'#!/bin/sh\nexec "{warm_python}"{arguments} "$@"\n')
        (folder / "bin" / name).chmod(0o755)
    return folder


@pytest.mark.parametrize(
    "page", [pytest.param(page, marks=pytest.mark.walkthrough) if page in TRAINING else page for page in SCRIPTS]
)
def test_every_unmarked_command_of_a_page_runs(page, prepared, tmp_path):
    folder = tmp_path / "here"
    shutil.copytree(prepared, folder, symlinks=True)
    done = subprocess.run(
        ["bash", "-euxo", "pipefail", "-c", SCRIPTS[page]],
        cwd=folder,
        env={
            **os.environ, "PATH": f"{folder / 'bin'}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT),
            "OMP_NUM_THREADS": "1",
        },
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, f"{page}:\n{done.stderr[-3000:]}"


def test_no_page_of_the_site_links_to_a_file_outside_it():
    outside = [
        (str(page.relative_to(ROOT)), target)
        for page in DOCS.rglob("*.md")
        for target in re.findall(r"\]\((?!\w+:|#)([^)#\s]+)", page.read_text())
        if not (page.parent / target).resolve().is_relative_to(DOCS)
    ]
    assert outside == []


INLINE = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
TYPED = re.compile(r"(?:\btprimat|-m tensorprimat|^(?:\./|python3 )?(?=\w+\.(?:py|sh)\b)) ?(\w+)(?:\.py|\.sh)?\b(.*)")
PAGES = [ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md")] + sorted(DOCS.rglob("*.md"))


def options_of(command):
    """Return every spelling of the options of a command."""
    app = typer.Typer(add_completion=False)
    app.command(command)(importlib.import_module(f"tensorprimat.cli.{command}").command)
    parameters = typer.main.get_command(app).params
    return {"--help", "--debug"}.union(*((*one.opts, *one.secondary_opts) for one in parameters))


def unknown_in(text):
    """Return the commands and options of a command within a sentence that do not exist."""
    found = TYPED.search(text)
    if not found or (" " not in text and "." in text):  # a script's name alone
        return []
    name, rest = found.groups()
    command = name if name in COMMANDS else earlier.command_of(name)
    if command is None:
        return [] if " " not in text.removeprefix("python3 ") else [name]
    flags = re.findall(r"(?<![\w-])--[a-z][a-z_-]*", rest)
    known = options_of(command)
    return [flag for flag in flags if flag not in known and f"--{earlier.option_of(command, flag[2:])}" not in known]


@in_each("page", PAGES)
def test_commands_within_sentences_have_options_that_exist(page):
    commands = INLINE.findall(page.read_text())
    assert not {command: unknown for command in commands if (unknown := unknown_in(command))}


def test_every_page_is_in_the_navigation_of_the_site():
    shown = set(re.findall(r": (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.M))
    pages = {str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md")} - {"example/comparison_report.md"}
    assert shown == pages
