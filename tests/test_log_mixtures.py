"""Rows among any other lines: exactly the planted steps are read, and only the tool's own errors are raised."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import scratch
from drawn import examples
from hypothesis import given
from hypothesis import strategies as st

from tensorprimat import logs
from tensorprimat.core.errors import TensorPrimatError
from tensorprimat.core.steps import Steps
from tensorprimat.logs.format import Reading
from tensorprimat.logs.text import Log


@dataclass(frozen=True, kw_only=True)
class Planted:
    """One format's row, and where the planted value comes out."""

    format: str
    row: Callable[[int, float], str]
    """(step, value between 1 and 9 with three decimals) -> one row, without line end"""
    column: str
    scale: float = 1.0
    first: int = 1
    """The number of the first step."""
    untimed: tuple[int, ...] = ()
    """Rows that hold no value by rule."""

    def read(self, text: bytes, *, format: str | None = None, rows_alone: bool = False) -> Steps:
        """Return the steps of a text; rows_alone: as the reader returns them, even if none of them can be measured."""
        with scratch.written(text) as path:
            if rows_alone:
                reading = logs.format_named(self.format).read(Log(path))
                assert isinstance(reading, Reading)
                return reading.steps
            return logs.read(path, format=format).steps

    def assert_planted(self, values: Sequence[float], steps: Steps) -> None:
        """Check that the steps are the planted ones, in their order."""
        expected = [None if n in self.untimed else value * self.scale for n, value in enumerate(values)]
        assert steps.column("index").tolist() == [self.first + n for n in range(len(values))]
        seen = [None if np.isnan(value) else value for value in steps.column(self.column).tolist()]
        assert [value is None for value in seen] == [value is None for value in expected]
        assert np.allclose([v for v in seen if v is not None], [v for v in expected if v is not None], rtol=1e-9)


def nemo_row(n: int, v: float) -> str:
    metrics = f"reduced_train_loss: 6.4 | train_step_timing in s: {v:.3f} | global_batch_size: 8"
    return f"Training epoch 0, iteration {n}/99 | lr: 3e-07 | {metrics}"


def torchtitan_row(n: int, v: float) -> str:
    metrics = f"memory: 38.50GiB(48.67%)  tps: {v * 1000:,.0f}  tflops: 1,000.13  mfu: N/A"
    return f"[titan] 2026-01-05 08:01:00,500 - root - INFO - \x1b[31mstep: {n:2}  loss:  7.1  {metrics}\x1b[39m"


def maxtext_row(n: int, v: float) -> str:
    rates = "TFLOP/s/device: 1.5, Tokens/s/device: 9.5"
    v = 0.001 if n == 1 else v  # a dispatch
    return f"completed step: {n}, seconds: {v:.3f}, {rates}, total_weights: 4096, loss: 9.125"


def huggingface_row(n: int, v: float) -> str:
    position = {"tokens_per_gpu_per_sec": f"{v:.3f}", "global_step/max_steps": f"{n}/99"}
    return str({"loss": 2.5, "learning_rate": 1e-5, **position})


def nanochat_row(n: int, v: float) -> str:
    speed = f"dt: {v * 1000:.2f}ms | tok/sec: 808,077 | mfu: 50.51"
    return f"step {n:05d}/16704 (0.06%) | loss: 2.8 | lrm: 1.00 | {speed}"


def olmo_row(n: int, v: float) -> str:
    values = f"    train/CrossEntropyLoss=2.9\n    throughput/device/tokens_per_second={v:.3f}"
    return f"2026-01-05 08:00:00.9 INFO [step={n}/99,epoch=0]\n{values}"


def automodel_row(n: int, v: float) -> str:
    return f"step {n} | epoch 0 | loss 2.31 | lr 1.00e-05 | mem 40.20 GiB | tps {v:.3f}(1.00/gpu) | num_label_tokens 9"


def nanotron_row(n: int, v: float) -> str:
    return f"iteration: {n} / 99 | consumed_tokens: 4.19M | time_per_iteration_ms: {v:.3f}K | lm_loss: 10.9"


def composer_row(n: int, v: float) -> str:
    values = f"\t Train loss/train/total: 2.9000\n\t Train time/secs_per_step: {v:.4f}"
    return f"[batch={n}/99]:\n{values}"


def torchtune_row(n: int, v: float) -> str:
    return f"Step {n} | loss:1.9 lr:2e-05 tokens_per_second_per_gpu:{v:.3f} peak_memory_alloc:20.25 "


def verl_row(n: int, v: float) -> str:
    return f"step:{n} - actor/pg_loss:0.2 - perf/time_per_step:{v:.3f} - perf/throughput:408.1"


def nemo_rl_row(n: int, v: float) -> str:
    return f"========== Step {n}/99 ==========\n  • Loss: 0.25\n  • Total step time: {1000 * v:.2f}s"


def deepspeed_row(n: int, v: float) -> str:
    step = f"epoch=0/micro_step={n}/global_step={n}, RunningAvgSamplesPerSec=99.0, CurrSamplesPerSec={v:.3f}"
    return f"[2026-01-05 08:01:00,250] [INFO] [timer.py:199:stop] {step}, MemAllocated=3.5GB, MaxMemAllocated=20.25GB"


def litgpt_row(n: int, v: float) -> str:
    step = f"Epoch 1 | iter {n} step {n} | loss train: 9.985, val: n/a"
    return f"{step} | iter time: {1000 * v:.2f} ms (step) remaining time: 0:12:01"


RATE = "reported_tokens_per_second_per_gpu"
FORMATS = (
    Planted(format="nemo", row=nemo_row, column="seconds", first=0),
    Planted(format="torchtitan", row=torchtitan_row, column=RATE, scale=1000),
    Planted(format="maxtext", row=maxtext_row, column="seconds", first=0, untimed=(1,)),
    Planted(format="huggingface", row=huggingface_row, column=RATE),
    Planted(format="nanogpt", row=nanochat_row, column="seconds"),
    Planted(format="olmo", row=olmo_row, column=RATE),
    Planted(format="automodel", row=automodel_row, column="reported_tokens_per_second"),
    Planted(format="nanotron", row=nanotron_row, column="seconds"),
    Planted(format="composer", row=composer_row, column="seconds"),
    Planted(format="torchtune", row=torchtune_row, column=RATE),
    Planted(format="verl", row=verl_row, column="seconds"),
    Planted(format="deepspeed", row=deepspeed_row, column="reported_samples_per_second"),
    Planted(format="litgpt", row=litgpt_row, column="seconds"),
    Planted(format="nemo_rl", row=nemo_rl_row, column="seconds", scale=1000),
)
NOISE = (
    "",
    "W0519 13:57:32.546000 581201 torch/distributed/run.py:874] Setting OMP_NUM_THREADS",
    "validate step: 10  loss: 5.1  memory: 1.00GiB(1.0%)  tps: 1,000",
    "Completed eval step: 3, seconds: 0.250, running loss=9.1",
    "Validation: iteration 1/5",
    "{'eval_loss': 1.5, 'eval_runtime': 9.1}",
    "Step 00250 | Validation bpb: 0.9102",
    'print(f"iter {n}: loss {loss:.4f}, time {dt*1000:.2f}ms, mfu {mfu*100:.2f}%")',
    "{}{}{}[[[((( step: iteration epoch | | completed step:",
    "Epoch 1, iteration of the data loader | shard: 5",
    "\x1b[32m[INFO]\x1b[0m NCCL version 2.29.7+cuda13.1",
    "100%|##########| 32/32 [00:00<00:00, 446.82it/s]",
    "[step=5/99,epoch=0]",
    "step:4/99 val_loss:4.29 without a clock",
    "\ufffd\ufffd \x00 binary leftovers",
)
MARGIN = ("", "[rank0]:", "[default0]:", "0: ", "(RayActor pid=71) ")
values = st.lists(st.integers(1000, 8999).map(lambda thousandths: thousandths / 1000), min_size=3, max_size=8)
each_format = pytest.mark.parametrize("planted", FORMATS, ids=[planted.format for planted in FORMATS])


@st.composite
def mixture(draw: st.DrawFn, planted: Planted, numbers: list[float]) -> str:
    """Return the rows in their order, with noise between them, a launcher's prefix and some line ending."""
    margin = draw(st.sampled_from(MARGIN))
    ending = draw(st.sampled_from(("\n", "\r\n")))
    lines = []
    for n, value in enumerate(numbers):
        lines += draw(
            st.lists(st.sampled_from(NOISE) | st.text(max_size=30).filter(lambda t: "\r" not in t), max_size=3)
        )
        lines += [margin + line for line in planted.row(planted.first + n, value).split("\n")]
    return ending.join([*lines, ""])


@each_format
@examples(5)
@given(data=st.data())
def test_any_mixture_of_rows_and_noise_gives_exactly_the_planted_steps(planted: Planted, data: st.DataObject) -> None:
    numbers = data.draw(values)
    text = data.draw(mixture(planted, numbers))
    planted.assert_planted(numbers, planted.read(text.encode(), rows_alone=True))


@each_format
@examples(5)
@given(numbers=values, cut=st.integers(1, 200))
def test_a_truncated_log_gives_the_rows_before_the_cut(planted: Planted, numbers: list[float], cut: int) -> None:
    text = "\n".join(planted.row(planted.first + n, value) for n, value in enumerate(numbers)) + "\n"
    whole = planted.read(text.encode(), format=planted.format)
    try:
        steps = planted.read(text[:-cut].encode(), format=planted.format)
    except TensorPrimatError:
        return
    assert len(steps) >= 1
    before = min(len(steps), len(whole) - 1)
    columns = ("index", planted.column)
    for column in columns:
        assert np.array_equal(steps.column(column)[:before], whole.column(column)[:before], equal_nan=True)


@each_format
@examples(5)
@given(junk=st.binary(max_size=300), place=st.integers(0, 2000), overwrite=st.booleans())
def test_damage_never_raises_anything_but_the_tools_own_errors(
    planted: Planted, junk: bytes, place: int, overwrite: bool
) -> None:
    text = "\n".join(planted.row(planted.first + n, 1.5 + n / 8) for n in range(6)).encode() + b"\n"
    damaged = text[:place] + junk + text[place + len(junk) * overwrite :]
    for format in (None, planted.format):
        with suppress(TensorPrimatError):
            planted.read(damaged, format=format)


@each_format
def test_rows_of_one_format_are_rows_of_no_other(planted: Planted, tmp_path: Path) -> None:
    path = tmp_path / "some.log"
    path.write_text("\n".join(planted.row(n, 1.5 + n / 8) for n in range(9)) + "\n")
    of_its_own = [format for format in logs.FORMATS if not format.last_resort]
    assert {format.name for format in of_its_own if format.detect(Log(path))} == {planted.format}
