"""Runs of perf/mfu_ladder.py on a CPU: the same parts as on a GPU, and one line for each whatever fails."""

import importlib.util
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("lightning")

FILE = Path(__file__).resolve().parent.parent / "perf" / "mfu_ladder.py"
_spec = importlib.util.spec_from_file_location("mfu_ladder", FILE)
ladder = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(ladder)


def lines(capsys):
    return capsys.readouterr().out.splitlines()


def test_a_part_that_fails_takes_no_other_line_with_it(capsys):
    def breaks():
        raise RuntimeError("out of luck\nand more")

    def leaves():
        raise SystemExit(3)

    def absent():
        raise ladder.NotHereError("no GPU")

    parts = {"one": lambda: "fine", "two": breaks, "three": leaves, "four": absent, "five": lambda: "fine too"}
    assert ladder.run(list(parts), parts) == 2
    said = lines(capsys)
    assert [line.split()[:2] for line in said] == [
        ["PASS", "one"], ["FAIL", "two"], ["FAIL", "three"], ["SKIP", "four"], ["PASS", "five"],
    ]  # fmt: skip
    assert said[1].endswith("RuntimeError: out of luck")


def test_the_parts_of_a_step_run_on_a_cpu(capsys):
    assert ladder.main(["--parts", "devices,sync,events,flash,compiled"]) == 0
    assert [line.split()[0] for line in lines(capsys)] == ["SKIP", "PASS", "PASS", "PASS", "SKIP"]


def test_a_rung_trains_by_the_command_that_a_gpu_would_run(capsys):
    assert ladder.main(["--parts", "eager"]) == 0
    (line,) = lines(capsys)
    assert "tokens/s/GPU" in line
    assert "MFU" in line


def test_a_part_that_does_not_exist_is_named(capsys):
    with pytest.raises(SystemExit):
        ladder.main(["--parts", "eager,nonesuch"])
    assert "--parts nonesuch: must be of devices, sync" in capsys.readouterr().err
