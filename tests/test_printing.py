"""No text from files and names steers a terminal, no encoding ends a command, and an unexpected error is one line."""

import ast
import io
import os
import re
import subprocess
import sys
from pathlib import Path

import plausible
import pytest
from each import in_each
from syntax import nodes

from tensorprimat import cli
from tensorprimat.cli import main, options
from tensorprimat.cli.live import Screen
from tensorprimat.reports import harmless
from tensorprimat.storage import store

ROOT = Path(__file__).parents[1]
EVIL = "a\x1b]0;owned\x07\x1b[2Jb\u202e\x9b31m"
COMMANDS = (
    ["compare", "FILE"],
    ["compare", "FILE", "GOOD", "--no-plot", "--output-dir", "OUT"],
    ["enhance", "FILE", "GOOD", "--output-dir", "OUT"],
    ["metrics", "FILE"],
    ["gate", "--baseline", "GOOD", "--candidate", "FILE"],
    ["history", "FOLDER", "--output-dir", "OUT"],
    ["aggregate", "FILE"],
    ["aggregate", "FOLDER"],
    ["extract", "--log-file", "FILE"],
    ["analyze", "FOLDER"],
    ["verify", "FOLDER"],
    ["run", "--model", "FILE"],
    ["FILE"],
)


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
@pytest.mark.parametrize("content", ["", "{}", "result"])
def test_nothing_that_a_command_prints_steers_a_terminal(words, content, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / EVIL
    folder.mkdir()
    good = store.to_json(plausible.result("h100", runs=2, steps=12))
    (tmp_path / "good.json").write_text(good)
    (folder / f"{EVIL}.json").write_text(
        good.replace("NVIDIA H100", r"\u001b[2JH100\u202e") if content == "result" else content
    )
    places = {
        "FILE": str(folder / f"{EVIL}.json"),
        "FOLDER": str(folder),
        "GOOD": "good.json",
        "OUT": str(tmp_path / "out"),
    }
    main([places.get(word, word) for word in words])
    printed = "".join(capfd.readouterr())
    assert printed
    assert not set(printed) & set("\x1b\x07\x9b\u202e")


def test_only_the_module_harmless_creates_consoles():
    for path in [*(ROOT / "tensorprimat" / "cli").glob("*.py"), *(ROOT / "tensorprimat" / "reports").glob("*.py")]:
        for node in nodes(path.read_text()):
            made = isinstance(node, ast.Call) and getattr(node.func, "id", getattr(node.func, "attr", "")) == "Console"
            assert not made or path.name == "harmless.py", f"{path.name}:{node.lineno} draws past the cleaning"


def test_a_console_keeps_its_own_colours_and_cleans_the_text(capsys):
    from rich.text import Text

    screen = harmless.console(force_terminal=True, color_system="standard", highlight=False)
    screen.print(Text(f"x{EVIL}", style="green"))
    printed = capsys.readouterr().out
    assert "\x1b[32m" in printed
    assert "\x1b]0;" not in printed
    assert "\x1b[2J" not in printed


def test_a_progress_bar_keeps_its_own_control_sequences_and_cleans_the_text(capsys):
    from rich.progress import Progress

    with harmless.harmless_output(), Progress(console=harmless.console(force_terminal=True, width=80)) as bar:
        bar.add_task(f"x{EVIL}")
    printed = capsys.readouterr().out
    assert "\x1b[?25l" in printed  # hides the cursor
    assert "\x1b]0;" not in printed
    assert "\x1b[2J" not in printed


def started(*words, folder, code=None, **environment):
    command = [sys.executable, "-c", code] if code else [sys.executable, "-m", "tensorprimat", *words]
    path = {"PYTHONPATH": str(ROOT)}
    return subprocess.run(
        command, cwd=folder, env={**os.environ, **path, **environment}, capture_output=True, timeout=60
    )


@in_each("encoding", ["ascii", "cp1252"])
def test_an_output_of_few_characters_ends_no_command(encoding, tmp_path):
    for machine in ("h100", "mi300x"):
        store.write(plausible.result(machine, runs=2, steps=12), tmp_path / f"{machine}.json")
    words = ["compare", "h100.json", "mi300x.json", "--no-plot", "--output-dir", "out"]
    done = started(*words, folder=tmp_path, PYTHONIOENCODING=encoding, PYTHONUTF8="0")
    assert done.returncode == 0, done.stderr
    assert b"Traceback" not in done.stderr
    assert b"H100" in done.stdout


GONE = """
import os, sys, tempfile
folder = tempfile.mkdtemp()
os.chdir(folder)
os.rmdir(folder)
from tensorprimat.cli import main, options
from tensorprimat.cli.live import Screen
for words in (["compare"], ["analyze"], ["run", "--dry-run", "--model", "llama"], ["history", "output"],
              ["extract", "--log-file", "x.log"], ["verify", "."], ["aggregate", "x"]):
    print(words[0], main(words), flush=True)
from tensorprimat.core.errors import of_file_system
print(of_file_system(FileNotFoundError(2, "No such file or directory", "/absent.log")), file=sys.stderr)
"""


def test_every_command_reports_a_deleted_working_folder_in_one_line(tmp_path):
    done = started(folder=tmp_path, code=GONE)
    codes = re.findall(r"^[a-z]+ (\d)$", done.stdout.decode(), re.MULTILINE)
    assert codes == ["1", "2", "1", "1", "1", "2", "2"], done.stderr.decode()
    assert b"Traceback" not in done.stderr
    assert b"unexpected" not in done.stderr
    for command in (b"compare", b"run"):
        assert b"tprimat %s: the working folder was deleted; change to another folder" % command in done.stderr
    assert b"/absent.log: No such file or directory" in done.stderr


UNWRITTEN = (
    ("--help", ">/dev/full", 1, 1),
    ("metrics FILE", ">/dev/full", 1, 1),
    ("primus NONE", "2>/dev/full", 2, 0),
    ("extract --log-file FILE --output-dir OUT", ">/dev/full 2>&1", 1, 0),
    ("processes", ">&PIPE", 1, 0),
    ("extract --log-file FILE --output-dir OUT", ">&PIPE 2>&1", 1, 0),
    ("processes", ">&-", 0, 0),
    ("extract --log-file FILE --output-dir OUT", ">&- 2>&- <&-", 0, 0),
    ("processes", ">&- 2>&- <&-", 0, 0),
)
"""Command, its redirection, exit code, and lines on stderr."""


@in_each(
    ("words", "redirected", "code", "lines", "buffered"), [*((*row, True) for row in UNWRITTEN), (*UNWRITTEN[1], False)]
)
def test_output_that_cannot_be_written_is_reported_in_one_line_with_an_exit_code(
    words, redirected, code, lines, buffered, tmp_path
):
    if not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full")
    store.write(plausible.result("h100"), tmp_path / "FILE")
    gone, pipe = os.pipe()
    os.close(gone)
    command = f"{sys.executable} -m tensorprimat {words} {redirected.replace('PIPE', str(pipe))}"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    if not buffered:
        environment["PYTHONUNBUFFERED"] = "1"
    done = subprocess.run(
        ["bash", "-c", command], cwd=tmp_path, capture_output=True, pass_fds=(pipe,),
        env={**environment, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    os.close(pipe)
    assert done.returncode == code
    assert len(done.stderr.splitlines()) == lines, done.stderr.decode()
    if "OUT" in words:  # stdout and stderr tell of the work, and do not end it
        assert [path.suffix for path in (tmp_path / "OUT").iterdir() if path.is_file()] == [".json"]


def test_an_unexpected_error_is_reported_in_one_line_and_debug_shows_its_traceback(monkeypatch, capsys):
    def fail(*_):
        raise ZeroDivisionError("of nothing\nat all")

    monkeypatch.setattr(cli, "_call", fail)
    assert main(["compare"]) == 1
    printed = capsys.readouterr().err
    assert printed.startswith("tprimat: unexpected error, ZeroDivisionError in ")
    assert printed.count("\n") == 1
    assert "--debug" in printed
    with pytest.raises(ZeroDivisionError):
        main(["compare", "--debug"])


@pytest.mark.parametrize("columns", [30, 80])
def test_names_of_written_files_are_never_broken_on_a_terminal(monkeypatch, columns):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    names = ["comparison_plot.png", "comparison_report.html", "comparison.json", "comparison.csv"]
    screen = Terminal()
    monkeypatch.setattr("sys.stderr", screen)
    monkeypatch.setattr("shutil.get_terminal_size", lambda *_, **__: os.terminal_size((columns, 24)))
    options.say_files("Written to output", names)
    lines = screen.getvalue().splitlines()
    assert len(lines) > 1
    assert all(len(line) <= columns for line in lines)
    assert all(any(name in line for line in lines) for name in names)


def test_names_of_written_files_stay_on_one_line_in_redirected_output(capsys):
    options.say_files("Written to output", ["a.json", "b.csv"])
    options.say_files("Written to output", [])
    assert capsys.readouterr().err == "Written to output: a.json, b.csv\nWritten to output\n"


def test_brackets_in_the_name_of_a_model_do_not_end_the_bar_of_its_training(monkeypatch, capsys):
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich draws as on a terminal
    with Screen(stderr=False).training("my[/a]model [bold]7B", 10) as show:
        show("[CPU] Step   1 | Time: 1.000s")
    printed = capsys.readouterr().out
    assert "my[/a]model [bold]7B" in printed
    assert "Step   1" in printed
