"""Tests of the table of train metrics, which example scripts of transformers print at the end of a training."""

import pytest

from tensorprimat.core.errors import NoFormatError

TABLE = """***** train metrics *****
  epoch                    =        3.0
  total_flos               =  8230452GF
  train_loss               =     3.1003
  train_runtime            = 0:12:20.61
  train_samples            =       4656
  train_samples_per_second =      18.86
  train_steps_per_second   =      2.369
***** eval metrics *****
  epoch                    =        3.0
  eval_runtime             = 0:00:07.32
  eval_samples_per_second  =     65.881
"""


def test_the_table_of_train_metrics_is_a_summary(read_text):
    result = read_text(TABLE)
    assert result.provenance.format == "huggingface"
    assert result.performance_metrics.samples_per_second == pytest.approx(18.86)
    assert result.performance_metrics.reported.runtime_seconds == pytest.approx(740.61)


def test_the_table_of_a_training_longer_than_a_day_states_all_of_its_time(read_text):
    assert read_text(
        TABLE.replace("0:12:20.61", "2 days, 1:12:20.61")
    ).performance_metrics.reported.runtime_seconds == pytest.approx(2 * 86400 + 3600 + 740.61)


def test_the_table_counts_once_with_the_summary_that_it_repeats(read_text):
    summary = "{'train_runtime': 740.6148, 'train_samples_per_second': 18.861, 'train_steps_per_second': 2.369}\n"
    alone, both = read_text(summary), read_text(summary + TABLE)
    assert both.performance_metrics == alone.performance_metrics

    assert not any(warning.startswith("segments") for warning in both.warnings)


def test_a_table_without_a_readable_runtime_is_no_summary(read_text):
    with pytest.raises(NoFormatError):
        read_text(TABLE.replace("0:12:20.61", "unknown"))
