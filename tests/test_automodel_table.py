"""Tables of NeMo Automodel and Meta Lingua: their time of a step includes the validation or checkpoint before it."""

import json
from datetime import datetime, timedelta

import pytest

from tensorprimat import logs
from tensorprimat.core.user_facts import UserFacts

TOKENS, STEP, OTHER_WORK = 262144, 2.0, 8.0


def stamp(moment):
    return moment.isoformat(timespec="milliseconds") + "Z"


def write(folder, *, first=1, last=60, every=10, hour=8, ranks=8, saves=False):
    """Write the rows of one training behind those in training.jsonl, with other work after every tenth step.

    ranks: divisor of tps_per_gpu. saves: the other work is the saving of a checkpoint.
    """
    now, waited, rows = datetime(2026, 1, 5, hour), 0.0, []
    for step in range(first, last + 1):
        seconds = STEP * (1 + 0.001 * (step % 3 - 1) + 1e-5 * hour) + waited
        now, waited = now + timedelta(seconds=seconds), 0.0
        rates = {"tps": TOKENS / seconds, "tps_per_gpu": TOKENS / seconds / ranks}
        row = {"step": step, "epoch": 0, "timestamp": stamp(now), "loss": 3 - step / 100, "grad_norm": 1.2, "lr": 1e-5}
        rows.append({**row, "mem": 40.25, **rates, "num_tokens_per_step": TOKENS, "num_label_tokens": 260000})
        if every and step % every == 0:
            waited = OTHER_WORK
            if saves:
                (folder / f"epoch_0_step_{step}").mkdir()
                continue
            validation = {**row, "timestamp": stamp(now + timedelta(seconds=waited)), "val_loss": 2.5, "mem": 40.1}
            with (folder / "validation.jsonl").open("a") as file:
                file.write(json.dumps(validation) + "\n")
    with (folder / "training.jsonl").open("a") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
    return rows


def read(folder, **facts):
    return logs.read(folder / "training.jsonl", facts=UserFacts(**facts))


@pytest.mark.parametrize(("saves", "kind"), [(False, "validation"), (True, "checkpoint")])
def test_a_step_that_holds_a_validation_or_a_checkpoint_is_not_measured(tmp_path, saves, kind):
    write(tmp_path, saves=saves)
    result = read(tmp_path, num_gpus=8)
    assert [step.index for step in result.steps if step.interrupted_by == kind] == [11, 21, 31, 41, 51]
    assert result.performance_metrics.avg_step_time_seconds == pytest.approx(STEP, rel=1e-3)


def test_a_validation_of_another_attempt_interrupts_no_step_of_this_one(tmp_path):
    write(tmp_path, last=25)
    write(tmp_path, first=5, last=60, every=0, hour=9)
    interrupted = [(step.segment, step.index) for step in read(tmp_path).steps if step.interrupted_by]
    assert interrupted == [(0, 11), (0, 21)]


def test_slow_steps_of_a_table_that_lies_alone_have_a_warning_with_the_possible_reason(tmp_path):
    write(tmp_path)
    (tmp_path / "validation.jsonl").unlink()
    assert any("its folder has no validation.jsonl" in warning for warning in read(tmp_path).warnings)
    even = tmp_path / "even"
    even.mkdir()
    write(even, every=0)
    assert not any("validation.jsonl" in warning for warning in read(even).warnings)


def test_a_validation_in_the_history_of_wandb_interrupts_the_step_after_it(tmp_path):
    rows = write(tmp_path)
    for row in rows:
        if row["step"] % 10 == 0:
            row["val_loss"] = 2.5
    history = tmp_path / "run" / "history.jsonl"
    history.parent.mkdir()
    history.write_text("".join(json.dumps({**row, "_step": row["step"]}) + "\n" for row in rows))
    result = logs.read(history)
    assert [step.index for step in result.steps if step.interrupted_by] == [11, 21, 31, 41, 51]
    assert result.performance_metrics.avg_step_time_seconds == pytest.approx(STEP, rel=1e-3)


def test_no_remedy_replaces_the_stated_number_of_gpus_with_that_of_the_replicas(tmp_path):
    write(tmp_path, every=0, ranks=4)
    result = read(tmp_path, num_gpus=8)
    assert result.performance_metrics.tokens_per_second_per_gpu == pytest.approx(TOKENS / STEP / 8, rel=1e-3)
    (warning,) = (text for text in result.warnings if text.startswith("tokens_per_second_per_gpu: computed"))
    assert "divided by 4" in warning
    assert "--num-gpus 4" not in warning


def test_a_row_of_linguas_metrics_that_holds_a_checkpoint_is_not_measured(tmp_path):
    now, rows = datetime(2026, 1, 5), []
    for step in range(10, 610, 10):
        seconds = 10 * STEP + (OTHER_WORK if step % 100 == 10 and step > 10 else 0.0)
        now += timedelta(seconds=seconds)
        rows.append({"global_step": step, "created_at": now.isoformat(), "loss/out": 3.0 - step / 1000})
        rows[-1] |= {"speed/wps": 10 * TOKENS / 8 / seconds, "optim/total_tokens": step * TOKENS}
        if step % 100 == 0:
            (tmp_path / "checkpoints" / f"{step:010d}").mkdir(parents=True)
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    result = logs.read(path, facts=UserFacts(num_gpus=8))
    assert [step.index for step in result.steps if step.interrupted_by] == [110, 210, 310, 410, 510]
    assert result.performance_metrics.tokens_per_second_per_gpu == pytest.approx(TOKENS / STEP / 8, rel=1e-3)
