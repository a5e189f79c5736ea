"""Logs that the installed frameworks print themselves give the steps that really ran."""

from dataclasses import replace

import pytest
import scripts

TOOL = scripts.load("tools/write_framework_logs.py")


@pytest.mark.parametrize("framework", TOOL.WRITERS)
def test_the_log_of_a_framework_here_is_read_as_the_training_that_took_place(framework, warm_python):
    line, agrees = TOOL.verdict(warm_python, framework)
    if agrees is None:
        pytest.skip(line)
    assert agrees, line


def planted(tmp_path):
    ends = [0.1 * n for n in range(TOOL.STEPS + 1)]
    losses = [3 - n / 100 for n in range(1, TOOL.STEPS + 1)]
    path = tmp_path / "a.log"
    path.write_text(
        "".join(
            f" iteration {n:8d}/      40 | elapsed time per iteration (ms): 100.0 | global batch size: 8 |"
            f" lm loss: {losses[n - 1]:.6E} |\n"
            for n in range(1, TOOL.STEPS + 1)
        )
    )
    return TOOL.Truth(framework="a", version="1", ends=ends, losses=losses), path


@pytest.mark.parametrize(
    ("changed", "printed"),
    [
        ({"ends": [0.13 * n for n in range(41)]}, "s by our clock"),
        ({"losses": [9.0] * 40}, "the last loss differs"),
        ({"tokens_per_step": 5}, "tokens a step, not 5"),
        ({"gpus": 5}, "GPUs, not 5"),
    ],
)
def test_every_difference_from_the_truth_is_named(tmp_path, changed, printed):
    truth, path = planted(tmp_path)
    assert any(printed in difference for difference in TOOL.differences(replace(truth, **changed), path))  # type: ignore[type-var]
