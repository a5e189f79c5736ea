"""Tests of perf/speed_gpu.py: its programs, their limits, and its ratios."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest
import scripts

pytest.importorskip("torch")
pytest.importorskip("lightning")

from each import in_each

from perf.turns import ratio_of_runs

speed_gpu = scripts.load("perf/speed_gpu.py")
SMALL = ["--cpu", "--preset", "tiny", "--steps", "3", "--warmup-steps", "1", "--sequence-length", "16"]
ROWS = "".join(f"step {number} | loss 7.8 | {{}} ms/step\n" for number in range(1, 5))


@pytest.mark.thorough
def test_the_engine_and_a_plain_loop_take_turns_on_a_cpu(tmp_path, capsys):
    file = tmp_path / "speed.json"
    programs = ["--programs", "engine:none,loop:none", "--global-batch-size", "1"]
    assert speed_gpu.main([*SMALL, *programs, "--json", str(file), "--goal", "1e-9"]) in (0, 3)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in lines[2:4]] == [["1", "engine:none"], ["1", "loop:none"]]
    assert lines[-1].startswith("engine:none / best of the others (loop:none): ")
    written = json.loads(file.read_text())
    for run in written["runs"]:
        assert run["failure"] is None
        assert len(run["step_seconds"]) == 3
        assert run["tokens_per_second"] == pytest.approx(16 / sorted(run["step_seconds"])[1])
    assert written["ratios"][0]["low"] < written["ratios"][0]["value"] < written["ratios"][0]["high"]


def test_without_torchtitan_one_line_says_how_to_install_it_or_to_leave_it_out(monkeypatch, capsys):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "torchtitan" else object())
    assert speed_gpu.main([*SMALL, "--programs", "engine,torchtitan:full,loop"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith(
        "torchtitan not installed: run pip install torchtitan==0.2.2, or leave torchtitan out: --programs engine,loop"
    )


@in_each(
    ("flags", "problem"),
    [
        (["--programs", "engine,torchtitan"], "unknown program 'torchtitan'"),
        (["--programs", "engine,loop:half"], "unknown program 'loop:half'"),
        (["--programs", "engine", "--turns", "0"], "--turns"),
        (["--programs", "engine", "--json", "/proc/none/speed.json"], "--json"),
    ],
)
def test_wrong_flags_end_in_one_line(capsys, flags, problem):
    assert speed_gpu.main([*SMALL, *flags]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert problem in line


def program(text):
    """Return the command of a program as the table has it: Python code, whatever mode and workload."""
    return lambda *_: [sys.executable, "-c", text]


def test_a_program_without_enough_memory_or_time_is_left_out_of_later_turns(monkeypatch, tmp_path, capsys):
    codes = {
        "fits": f"print({ROWS.format(*[500] * 4)!r})",
        "large": "raise SystemExit('torch.OutOfMemoryError: CUDA out of memory.')",
        "slow": "import time; time.sleep(60)",
        "wrong": "raise SystemExit('no such model')",
    }
    any_mode = speed_gpu.PROGRAMS["engine"][1]
    monkeypatch.setattr(speed_gpu, "PROGRAMS", {name: (program(text), any_mode) for name, text in codes.items()})
    file = tmp_path / "speed.json"
    flags = ["--programs", ",".join(codes), "--turns", "2", "--limit", "3", "--json", str(file)]
    assert speed_gpu.main([*SMALL, *flags]) == 1
    runs = json.loads(file.read_text())["runs"]
    assert [(one["turn"], one["program"]) for one in runs] == [*((1, name) for name in codes), (2, "fits")]
    assert [one["failure"] for one in runs] == [
        None, "out of memory", "timed out: killed after 3 s (--limit)", "exit code 1: no such model", None,
    ]  # fmt: skip
    assert "large" in capsys.readouterr().out


@in_each(
    ("mode", "flags"),
    [
        ("none", ["none"]),
        ("full", ["full"]),
        ("selective-op", ["selective", "--activation_checkpoint.selective_ac_option", "op"]),
        ("selective-2", ["selective", "--activation_checkpoint.selective_ac_option", "2"]),
        ("memory_budget=0.35", ["memory_budget", "--activation_checkpoint.memory_budget", "0.35"]),
    ],
)
def test_torchtitan_gets_the_flags_of_each_of_its_modes(mode, flags):
    work = speed_gpu.Workload(
        preset="full", sequence_length=8192, global_batch_size=4, steps=6, warmup_steps=4, on_cpu=False
    )
    assert speed_gpu.PROGRAMS["torchtitan"][1].fullmatch(mode)
    command = speed_gpu.torchtitan_command(mode, work, Path("folder/1.json"))
    at = command.index("--activation_checkpoint.mode")
    assert command[at + 1 : at + 1 + len(flags)] == flags
    assert command[command.index("--training.steps") + 1] == "10"
    assert command[command.index("--model.flavor") + 1] == "8B"


def test_rows_and_peak_memory_of_torchtitans_log_are_read(shared):
    log = shared / "gpu/torchtitan_h100_full_recompute.log"
    if not log.exists():
        pytest.skip(f"needs {log}")
    work = speed_gpu.Workload(
        preset="full", sequence_length=8192, global_batch_size=4, steps=6, warmup_steps=3, on_cpu=False
    )
    sampler = speed_gpu.telemetry.Sampler([])
    text = f"{speed_gpu.gpu_peers.peak_line(68e9, 71e9)}\n"
    done = speed_gpu.Run(program="torchtitan:full", turn=1, process_seconds=52.0)
    found = speed_gpu.measured(done, log, text, work, sampler)
    assert found.tokens_per_second == pytest.approx(8860, rel=1e-3)
    assert (found.peak_allocated_bytes, found.peak_reserved_bytes) == (68e9, 71e9)
    assert found.mean_watts is None


def test_the_first_ratio_is_that_of_our_fastest_program_to_the_best_of_the_others():
    def run(program, *seconds):
        return speed_gpu.Run(
            program=program, turn=1, process_seconds=9.0, step_seconds=seconds, tokens_per_second=1 / seconds[1]
        )

    runs = [
        run("engine", 3.9, 4.0, 4.1),
        run("engine:35%", 3.1, 3.2, 3.3),
        run("torchtitan:full", 3.5, 3.6, 3.7),
        run("loop", 3.7, 3.8, 3.9),
    ]
    found = speed_gpu.ratios(runs)
    names = [(one.ours, one.theirs, round(one.value, 3)) for one in found]
    assert names[0] == ("engine:35%", "torchtitan:full", 1.125)
    assert names[-1] == ("engine", "loop", 0.95)
    assert speed_gpu.exit_code(runs, found, goal=1.0) == (0 if found[0].low >= 1 else 3)


def test_several_turns_are_the_sample_of_a_ratio_and_one_turn_has_the_steps():
    ours, theirs = [[2.0, 2.0, 2.1], [2.0, 2.0, 2.0]], [[3.0, 3.0, 3.0], [3.1, 3.1, 9.0]]
    value, low, high = ratio_of_runs(ours, theirs)
    assert value == pytest.approx((1.5 * 1.55) ** 0.5)
    assert low < value < high
    value, low, high = ratio_of_runs(ours[:1], theirs[:1])
    assert value == 1.5
    assert 1.2 < low < value < high < 1.8
    assert ratio_of_runs([[2.0]], [[3.0]]) == (1.5, None, None)
