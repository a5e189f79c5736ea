"""Logs that were copied: quotes, indentation, line numbers, hard spaces and `^M` change nothing that is read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from each import in_each
from job_logs import Job
from table_logs import ALL_JOBS

from tensorprimat.logs import copies

Lines = Sequence[str]

COPIES: dict[str, Callable[[Lines], Lines]] = {
    "quoted": lambda lines: [f"> {line}" for line in lines],
    "quoted without a space": lambda lines: [f">{line}" for line in lines],
    "quoted in an answer": lambda lines: ["Here it is:", "", *(f"> {line}" for line in lines), "", "Any idea?"],
    "indented": lambda lines: [f"    {line}" if line else "" for line in lines],
    "indented by a tab": lambda lines: [f"\t{line}" for line in lines],
    "quoted and indented": lambda lines: [f">     {line}" for line in lines],
    "cat -n": lambda lines: [f"{number:6d}\t{line}" for number, line in enumerate(lines, 1)],
    "sed -n 100,200p of bat": lambda lines: [f"{number:4d} | {line}" for number, line in enumerate(lines, 100)],
    "grep -n": lambda lines: [f"{number}:{line}" for number, line in enumerate(lines, 1)],
    "grep -Hn": lambda lines: [f"runs/train.log:{number}:{line}" for number, line in enumerate(lines, 1)],
    "grep -H": lambda lines: [f"train.log:{line}" for line in lines],
    "hard spaces": lambda lines: [line.replace("  ", " \u00a0") for line in lines],
    "fenced": lambda lines: ["```", *lines, "```"],
}
NANOGPT = (
    "Overriding: block_size = 1024",
    "tokens per iteration will be: 491,520",
    "step 0: train loss 10.9895, val loss 10.9900",
    "iter 0: loss 10.9774, time 25117.76ms, mfu -100.00%",
    "iter 10: loss 10.4046, time 462.49ms, mfu 28.86%",
    "iter 20: loss 9.8023, time 462.31ms, mfu 28.88%",
    "step 25: train loss 9.4000, val loss 9.4100",
    "iter 30: loss 9.4981, time 9619.24ms, mfu 28.91%",
    "iter 40: loss 9.2942, time 463.03ms, mfu 28.93%",
)


def text(lines: Lines) -> str:
    return "\n".join(lines) + "\n"


@in_each("copy", COPIES)
@in_each("format", [name for name in ALL_JOBS if name != "metrics table"])
def test_a_copied_log_is_read_like_the_log_itself(format: str, copy: str, read_text: Any) -> None:
    lines = ALL_JOBS[format](Job())
    if format in ("lightning", "metrics rows") and copy in ("quoted in an answer", "fenced"):
        pytest.skip("a table begins at the top of its file")
    plain, read = read_text(text(lines)), read_text(text(COPIES[copy](lines)))
    assert read.provenance.format == plain.provenance.format
    assert read.performance_metrics == plain.performance_metrics
    assert read.training_config == plain.training_config
    assert read.memory_metrics == plain.memory_metrics


@in_each("copy", COPIES)
def test_an_evaluation_in_a_copied_log_of_nanogpt_is_left_out(copy: str, read_text: Any) -> None:
    result = read_text(text(COPIES[copy](NANOGPT)))
    assert [step.interrupted_by for step in result.steps] == ["validation", "", "", "validation", ""]
    assert result.performance_metrics.avg_step_time_seconds == pytest.approx(0.46261, rel=1e-3)
    assert result.training_config.global_batch_size == 480


def test_the_line_of_a_step_is_that_of_the_file(read_text: Any) -> None:
    result = read_text(text(COPIES["quoted in an answer"](NANOGPT)))
    assert [step.line for step in result.steps] == [6, 7, 8, 10, 11]


def test_progress_bars_whose_carriage_returns_were_shown_are_read(read_text: Any) -> None:
    def bar(step: int) -> str:
        return f" {step:2d}%|#    | {step}/100 [{step // 3:02d}:{step * 20 % 60:02d}<30:00, 20.00s/it]"

    lines = [
        f"{bar(step - 1)}^M{bar(step)}^M{' ' * 40}^M"
        f"{{'loss': {2 - step / 100}, 'learning_rate': 1e-05, 'epoch': {step / 100}}}"
        for step in range(1, 25)
    ]
    shown, drawn = read_text(text(lines)), read_text(text(lines).replace("^M", "\r"))
    assert shown.performance_metrics.avg_step_time_seconds == pytest.approx(20.0, rel=0.01)
    assert shown.performance_metrics == drawn.performance_metrics


@pytest.mark.parametrize(
    "lines",
    [
        [f"{rank}: loss 2.5" for rank in range(8)],  # srun --label
        [f"{step}\t{3 - step / 10}" for step in range(1, 4)],
        ["step\tloss", *(f"{step}\t{3 - step / 10}" for step in range(1, 20))],
        [f" iteration {step}/ 100 | loss 2.5" for step in range(9)],
        [">>> import torch", ">>> torch.__version__", ">>> exit()"],
        ["> building datasets", "> done", *(f"iteration {step}" for step in range(5))],
        [f"10:20:{second} INFO step" for second in range(30, 40)],
        [f"{step * 10} | 2.5 | 0.31" for step in range(1, 9)],
        [f"  {step:>6}    2.250    8,192" for step in range(5, 105, 5)],
    ],
    ids=["ranks", "few numbers", "table", "one space", "session", "two marks", "clock", "columns", "aligned"],
)
def test_lines_that_only_resemble_marks_keep_their_text(lines: list[str]) -> None:
    assert copies.copying_in(text(lines).encode()) is None
