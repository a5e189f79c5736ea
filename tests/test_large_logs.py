"""Very long logs are read by faster methods, with the same results."""

import json

import numpy as np
import pytest
from each import in_each
from job_logs import Job
from table_logs import ALL_JOBS

from tensorprimat import logs
from tensorprimat.audit.evidence import ByStep, at
from tensorprimat.core.errors import NotALogError
from tensorprimat.logs import starts


@pytest.fixture(name="long_already")
def _long_already(monkeypatch):
    monkeypatch.setattr(starts, "MANY_ROWS", 5)
    monkeypatch.setattr(starts, "SAMPLED_GAPS", 3)


@pytest.mark.usefixtures("long_already")
@in_each("name", ["composer", "nemo_rl", "olmo", "torchtitan", "nemo"])
def test_a_second_training_in_a_very_long_log_is_found(tmp_path, name):
    path = tmp_path / "train.log"
    path.write_text("\n".join([*ALL_JOBS[name](Job()), *ALL_JOBS[name](Job(batch=128, seconds=3.1, last=30))]) + "\n")
    found = [len(result.steps) for result in logs.read_each(path)]
    assert found in ([40, 30], [40, 29])  # of rows of several lines the last has no end


@in_each("name", sorted(ALL_JOBS))
def test_a_very_long_log_of_one_training_is_not_cut(tmp_path, monkeypatch, name):
    path = tmp_path / ("train.csv" if name in ("lightning", "metrics table") else "train.log")
    path.write_text("\n".join(ALL_JOBS[name](Job())) + "\n")
    whole = logs.read_each(path)
    monkeypatch.setattr(starts, "MANY_ROWS", 5)
    monkeypatch.setattr(starts, "SAMPLED_GAPS", 3)
    assert logs.read_each(path) == whole


def test_by_step_returns_the_same_numbers_as_a_dictionary():
    known = {2: 0.5, 5: 1.5, 9: 2.5}
    columns = ByStep(np.array([2, 5, 9]), np.array([0.5, 1.5, 2.5]))
    expected = np.arange(11)
    assert dict(columns) == known
    assert [columns.get(int(step)) for step in expected] == [known.get(int(step)) for step in expected]
    assert np.array_equal(at(columns, expected), at(known, expected), equal_nan=True)


def test_a_document_is_not_parsed_again_for_each_of_its_rows(tmp_path, monkeypatch):
    rows = [{"epoch": n / 100, "learning_rate": 5e-05, "loss": 9.5 - n / 1000, "step": n} for n in range(1, 200)]
    path = tmp_path / "trainer_state.json"
    path.write_text(json.dumps({"global_step": 199, "log_history": rows}, indent=2))
    parsed, loads = [], json.loads
    monkeypatch.setattr(json, "loads", lambda text, **options: parsed.append(len(text)) or loads(text, **options))
    with pytest.raises(NotALogError):
        logs.read(path)
    assert sum(size > 1000 for size in parsed) <= 3
