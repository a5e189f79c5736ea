"""Tests that the README and docs/ are true: commands, flags, files, JSON keys, pages generated from the code."""

import io
import json
import re
import subprocess
import sys
from contextlib import redirect_stdout
from functools import cache
from pathlib import Path

import pytest
from each import in_each

from tensorprimat.cli import main
from tensorprimat.core.spec import MODELS

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text()
DOCS = ROOT / "docs"
PAGES = {str(path.relative_to(DOCS)): path.read_text() for path in sorted(DOCS.rglob("*.md"))}
BY_HAND = {name: text for name, text in PAGES.items() if "Written by" not in text and not name.startswith("example/")}
WRITTEN = "\n".join([README, *BY_HAND.values()])

SCRIPT = re.compile(r"(?:python3 |\./)(\w+\.(?:py|sh))((?: +[^`#\n|]*)?)")
TPRIMAT = re.compile(r"(?:tprimat|-m tensorprimat) (\w+)((?: +[^`#\n|]*)?)")
MENTIONED = sorted({(script, flags.strip()) for script, flags in SCRIPT.findall(WRITTEN)})
COMMANDS = sorted({(command, flags.strip()) for command, flags in TPRIMAT.findall(WRITTEN)})


def tracked():
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return set(listed.split("\n")) - {""}


@in_each(("script", "flags"), MENTIONED)
def test_every_script_of_the_readme_and_docs_exists_and_knows_its_flags(script, flags):
    assert (ROOT / script).is_file()
    if script.endswith(".py"):
        assert unknown_flags(manual_of_script, script, flags) == []


@in_each(("command", "flags"), COMMANDS)
def test_every_command_of_the_readme_and_docs_exists_and_knows_its_flags(command, flags):
    assert unknown_flags(manual_of_command, command, flags) == []


SET_BY_OTHERS = {
    *("RANK", "LOCAL_RANK", "WORLD_SIZE", "TORCHELASTIC_RUN_ID"),  # torchrun
    *("SLURM_NTASKS", "SLURM_NTASKS_PER_NODE", "SLURM_STEP_ID", "SLURMD_NODENAME"),
    *("PATH", "PYTHONPATH", "COMP_WORDS", "_TYPER_COMPLETE_ARGS"),  # the shell
    *("HF_HUB_OFFLINE", "HIPBLASLT_ALLOW_TF32", "PYTORCH_CUDA_ALLOC_CONF"),  # this program, unless they are set
    *("PYDANTIC_DISABLE_PLUGINS", "NEMORUN_HOME"),  # this program
}


def test_every_environment_variable_that_the_program_reads_is_documented():
    text = "\n".join(path.read_text() for path in (ROOT / "tensorprimat").rglob("*.py"))
    read = set(re.findall(r"environ(?:\.get|\.setdefault)?[(\[]\"(\w+)\"", text))
    read |= {f"{model.upper()}_{ending}" for model in MODELS for ending in ("LOG", "CONFIG")}
    read |= set(re.findall(r"\{([A-Z_]{6,}):-", "".join(path.read_text() for path in ROOT.glob("*.sh"))))
    assert read - SET_BY_OTHERS - set(re.findall(r"`(\w+)`", PAGES["reference/environment.md"])) == set()


def unknown_flags(manual, program, flags):
    """Return the flags that the manual of a program does not name. manual: function that returns it."""
    named = set(re.findall(r"(?<!\S)--[a-z-]+", flags)) - {"--help"}
    if not named:
        return []
    return sorted(named - set(re.findall(r"--[a-z-]+", manual(program))))


@cache
def manual_of_script(script):
    return subprocess.run(
        [sys.executable, script, "--help"], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
    ).stdout


@cache
def manual_of_command(command):
    with redirect_stdout(io.StringIO()) as manual:
        assert main([command, "--help"]) == 0
    return manual.getvalue()


def tree_of(page):
    """Return (indent, name) for every line of the tree in a page."""
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", page, re.S | re.M)
    block = next(text for language, text in blocks if not language and "tensorprimat/ " in text)
    return re.findall(r"^( *)([\w.-]+/?) +\S.*$", block, re.M)


@pytest.mark.parametrize("page", [README, CONTRIBUTING], ids=["README", "CONTRIBUTING"])
def test_every_file_of_the_tree_exists(page):
    missing = []
    folder = ""
    for indent, name in tree_of(page):
        path = f"{folder}{name}" if indent else name
        if not indent:
            folder = name if name.endswith("/") else ""
        if not (ROOT / path).exists():
            missing.append(path)
    assert missing == []


def test_every_package_has_one_line_in_readme_and_contributing():
    rooms = {path.name for path in (ROOT / "tensorprimat").iterdir() if path.is_dir() and not path.name.startswith("_")}
    assert {name.rstrip("/") for indent, name in tree_of(README) if indent} == rooms
    assert set(re.findall(r"^\| `(\w+)` \|", CONTRIBUTING, re.M)) == rooms


def test_every_file_at_the_top_is_in_the_tree_of_contributing():
    shown = {name for _, name in tree_of(CONTRIBUTING)}
    top = {path.name for path in ROOT.iterdir() if path.suffix in (".py", ".sh", ".txt") and path.name in tracked()}
    assert top - shown == set()


def test_every_commit_that_contributing_names_has_the_title_given_there():
    if not (ROOT / ".git").exists():
        pytest.skip("no git history here")
    history = subprocess.run(["git", "log", "--format=%s"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    if len(history.splitlines()) < 100:
        pytest.skip("a shallow clone has no history")
    named = [
        " ".join(title.split())
        for title in re.findall(r'^- [^"]*"([^"]+)"|: "([^"]+)"', CONTRIBUTING, re.M)
        for title in title
        if title
    ]
    assert len(named) >= 8
    assert [title for title in named if title not in history.splitlines()] == []


def test_the_keys_of_the_json_example_are_keys_of_a_result():
    example = json.loads(re.search(r"```json\n(.*?)```", PAGES["reference/result-file.md"], re.S).group(1))
    schema = json.loads((DOCS / "result.schema.json").read_text())

    def check(document, node, where):
        node = schema["$defs"][node["$ref"].rsplit("/", 1)[1]] if "$ref" in node else node
        if isinstance(document, dict) and "properties" in node:
            for key, value in document.items():
                assert key in node["properties"], f"{where}.{key}"
                check(value, node["properties"][key], f"{where}.{key}")

    check(example, schema, "result")


def test_every_linked_picture_and_page_exists():
    links = re.findall(r"\]\(([^)#]+)\)", README + CONTRIBUTING)
    assert [link for link in links if "://" not in link and not (ROOT / link).exists()] == []


@pytest.mark.usefixtures("warm")
def test_the_pages_written_from_the_code_are_up_to_date():
    check = subprocess.run(
        [sys.executable, "tools/write_docs.py", "--check"], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert check.returncode == 0, check.stderr


def test_the_makefile_has_the_two_commands_first():
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M)
    assert {"benchmark", "test", "env"} <= set(targets)
    assert README.index("make benchmark") < README.index("make test") < README.index("## Five things")


def test_published_mfu_is_on_one_page_only():
    page = (DOCS / "reference" / "expected-mfu.md").read_text()
    assert "published.toml" in page
    assert re.search(r"\| H100 SXM \| 8 \| FP8 .* 14,451 \| 37\.6% \|", page)
    assert not re.search(r"\d\d\.\d ?%", BY_HAND["reference/reports.md"])
