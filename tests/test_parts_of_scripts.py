"""Parts of a script in processes of their own: one that crashes or hangs leaves the lines of the others."""

import gc
import os
import sys
import weakref
from pathlib import Path
from types import SimpleNamespace

import psutil

from perf import parts

ROOT = Path(__file__).resolve().parents[1]
SLEEPING = f"{1000 + os.getpid()}.5"  # seconds by which this process knows its own
SCRIPT = f"""
import os, signal, subprocess, sys, time
sys.path.insert(0, {str(ROOT)!r})
from perf import parts

def breaks():
    raise RuntimeError("out of luck\\nand more")

def leaves():
    raise SystemExit(3)

def absent():
    raise parts.NotHereError("no GPU")

def dies():
    print("noise of a library")
    print("the cause", file=sys.stderr, flush=True)
    os.kill(os.getpid(), signal.SIGSEGV)

def exits():
    os._exit(7)

def hangs():
    subprocess.Popen(["sleep", "{SLEEPING}"], start_new_session=True)
    time.sleep(60)

def number():
    return f"process {{os.getpid()}}"

known = dict(one=number, two=number, three=number, breaks=breaks, leaves=leaves, absent=absent, dies=dies, exits=exits,
             hangs=hangs)
sys.exit(parts.run(sys.argv[1].split(","), known))
"""


def supervised(tmp_path, capsys, *groups, **limits):
    """Return the verdicts and the printed lines without their seconds."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    verdicts = parts.supervise([sys.executable, str(script)], groups, limit_seconds=2.0, **limits)
    lines = [line.split(maxsplit=4) for line in capsys.readouterr().out.splitlines()]
    assert [line[:2] for line in lines] == [[verdict, name] for name, verdict in verdicts.items()]
    return verdicts, [line[4] for line in lines]


def test_a_part_that_fails_or_crashes_or_exits_loses_no_line_of_another_part(tmp_path, capsys):
    names = ("one", "breaks", "leaves", "absent", "dies", "exits", "two")
    verdicts, printed = supervised(tmp_path, capsys, names)
    assert list(verdicts.values()) == ["PASS", "FAIL", "FAIL", "SKIP", "FAIL", "FAIL", "PASS"]
    assert printed[1:6] == [
        "RuntimeError: out of luck", "SystemExit: 3", "no GPU", "crashed: SIGSEGV; the cause",
        "ended with exit code 7 and no line",
    ]  # fmt: skip


def test_parts_of_a_group_share_a_process_until_one_fails(tmp_path, capsys):
    _, (one, two, _, three) = supervised(tmp_path, capsys, ("one", "two"), ("breaks", "three"))
    assert one == two != three


def test_a_part_that_hangs_is_killed_with_its_children_at_its_limit(tmp_path, capsys):
    verdicts, printed = supervised(tmp_path, capsys, ("hangs", "one"))
    assert verdicts == {"hangs": "FAIL", "one": "PASS"}
    assert printed[0] == "timed out: killed after 2 s"
    assert not [one for one in psutil.process_iter(["cmdline"]) if (one.info["cmdline"] or [])[-1:] == [SLEEPING]]


def test_parts_for_which_no_time_is_left_are_skipped(tmp_path, capsys):
    verdicts, printed = supervised(tmp_path, capsys, ("hangs", "one"), ("two",), all_seconds=0.5)
    assert verdicts == {"hangs": "SKIP", "one": "SKIP", "two": "SKIP"}
    assert printed[1] == "no time left (--minutes); alone: --parts one"


def test_a_part_starts_without_the_models_of_the_one_before(monkeypatch):
    emptied, models = [], []
    monkeypatch.setitem(
        sys.modules, "torch", SimpleNamespace(cuda=SimpleNamespace(empty_cache=lambda: emptied.append(1)))
    )

    class Model:
        def __init__(self):
            self.trainer = self  # a cycle, as of a model and its trainer

    def trains():
        models.append(weakref.ref(Model()))
        return "trained"

    def measures():
        assert models[0]() is None
        assert emptied
        return "measured"

    gc.disable()
    try:
        assert parts.run(["trains", "measures"], {"trains": trains, "measures": measures}) == 0
    finally:
        gc.enable()
