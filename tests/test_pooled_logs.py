"""Logs that become runs of one benchmark: what may differ between them, and what is said about it."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from each import in_each

from tensorprimat.core import identity
from tensorprimat.logs import read
from tensorprimat.session.extract import Extracted, joined_logs

DUMP = """\
  num_layers ...................................... 16
  softmax_type .................................... {softmax}
  save ............................................ /ckpt/{softmax}
  seed ............................................ {seed}
"""
ROW = (
    " iteration {n:8}/      60 | consumed samples: {samples:12} | elapsed time per iteration (ms): {ms:.1f} | "
    "learning rate: 1.000000E-05 | global batch size:    16 | lm loss: {loss:.6E} | loss scale: 1.0 | "
    "grad norm: 1.000 | number of skipped iterations:   0 | number of nan iterations:   0 |\n"
)


def log(path: Path, seconds: float, *, softmax: str = "vanilla", seed: int = 1) -> str:
    """Write a log whose steps vary by 0.3 %."""
    noise = np.random.default_rng(seed).standard_normal(60)
    rows = [
        ROW.format(n=n, samples=16 * n, ms=1000 * seconds * (1 + 0.003 * off), loss=3 + off / 99)
        for n, off in enumerate(noise, 1)
    ]
    path.write_text(DUMP.format(softmax=softmax, seed=seed) + "".join(rows), encoding="utf-8")
    return str(path)


def pooled(paths: list[str]) -> list[Any]:
    return joined_logs(Extracted(logs=(path,), result=read(path)) for path in paths)[0]


def test_arguments_that_differ_are_named(tmp_path: Path) -> None:
    paths = [
        log(tmp_path / f"{name}.log", 2.0, softmax=name, seed=n) for n, name in enumerate(("vanilla", "learnable"))
    ]
    (one,) = pooled(paths)
    assert identity.arguments_apart([read(path) for path in paths]) == {"softmax_type": ["learnable", "vanilla"]}
    assert [text for text in one.result.warnings if "softmax_type (learnable, vanilla)" in text]


def test_the_rule_by_which_logs_were_pooled_is_stated(tmp_path: Path) -> None:
    (one,) = pooled([log(tmp_path / f"{n}.log", 2.0 + 0.02 * n, seed=n) for n in range(3)])
    assert ("pooled_by_rule", 3) in [(told.code, told.values.get("logs")) for told in one.result.remarks]


@pytest.mark.parametrize(("seconds", "results"), [(2.04, 1), (2.12, 2)])
def test_steady_runs_that_are_six_percent_apart_are_two_benchmarks(
    tmp_path: Path, seconds: float, results: int
) -> None:
    assert len(pooled([log(tmp_path / "a.log", 2.0), log(tmp_path / "b.log", seconds, seed=2)])) == results


@in_each(
    "dump",
    [
        "".join(f"Config param setting_{n}: {n}\n" for n in range(9)),
        "TrainingArguments(\n" + "".join(f"setting_{n}={n},\n" for n in range(9)) + ")\n",
        "".join(f"  setting_{n}: {n}\n" for n in range(9)),
        "Running with args: {'a': {" + ", ".join(f"'setting_{n}': {n}" for n in range(9)) + "}}\n",
    ],
)
def test_arguments_are_found_in_every_form(tmp_path: Path, dump: str) -> None:
    path = Path(log(tmp_path / "run.log", 2.0))
    path.write_text(dump + path.read_text(encoding="utf-8"), encoding="utf-8")
    found = read(path).provenance.arguments
    assert {name.removeprefix("a."): value for name, value in found.items() if "setting_" in name} == {
        f"setting_{n}": str(n) for n in range(9)
    }
    assert not {"save", "seed"} & found.keys()


def test_single_lines_with_a_colon_are_no_arguments(tmp_path: Path) -> None:
    path = Path(log(tmp_path / "run.log", 2.0))
    path.write_text("loading took: 3.2 s\nhost: a1\n" + path.read_text(encoding="utf-8"), encoding="utf-8")
    assert read(path).provenance.arguments.keys() == {"num_layers", "softmax_type"}
