"""Steps keep what was seen, row by row, and nothing else."""

import math
from dataclasses import FrozenInstanceError

import numpy as np
import pytest
from each import in_each
from hypothesis import given
from hypothesis import strategies as st

from tensorprimat.core.steps import COLUMNS, INTERRUPTIONS, PICKED_AT_ONCE, Step, Steps, StepsBuilder

figure = st.none() | st.floats(min_value=1e-6, max_value=1e6)
steps = st.lists(
    st.builds(
        Step,
        index=st.integers(0, 10**9),
        seconds=figure,
        covers=st.integers(1, 100),
        loss=figure | st.just(math.nan),
        learning_rate=figure,
        memory_allocated_bytes=figure,
        interrupted_by=st.sampled_from(INTERRUPTIONS),
        skipped=st.booleans(),
        run=st.integers(0, 5),
        line=st.none() | st.integers(1, 10**9),
    ),
    max_size=30,
)


def same(left: Step, right: Step) -> bool:
    pairs = [(getattr(left, name), getattr(right, name)) for name in COLUMNS]
    return all(a == b or (a is not None and b is not None and a != a and b != b) for a, b in pairs)


@given(steps)
def test_rows_come_back_as_they_went_in(rows):
    assert all(map(same, rows, Steps.of(rows)))
    assert len(Steps.of(rows)) == len(rows)


@given(steps, steps)
def test_concatenation_is_one_after_the_other(first, second):
    joined = Steps.concatenate([Steps.of(first), Steps.of(second)])
    assert joined == Steps.of(first + second)


def test_a_missing_loss_stays_none_and_a_logged_nan_stays_nan():
    rows = Steps.of([Step(index=1, seconds=1.0, loss=math.nan), Step(index=2, seconds=1.0)])
    assert math.isnan(rows[0].loss)
    assert rows[1].loss is None


def test_a_field_that_no_row_carries_takes_no_memory():
    assert Steps.of([Step(index=1, seconds=0.5)]).seen == ("index", "seconds")


def test_a_mask_takes_rows_with_all_their_fields():
    rows = Steps.of([Step(index=i, seconds=i / 10, loss=float(i)) for i in range(1, 5)])
    assert [step.loss for step in rows.take(np.array([False, True, False, True]))] == [2.0, 4.0]


def test_columns_of_different_length_are_refused():
    with pytest.raises(ValueError, match="different length"):
        Steps({"index": np.arange(3), "seconds": np.ones(2)})


def test_an_unknown_column_is_refused():
    with pytest.raises(ValueError, match="no such column: speed"):
        Steps({"speed": np.ones(2)})


@pytest.mark.parametrize("as_mask", [True, False])
def test_rows_taken_of_a_very_long_series_are_the_same_rows(as_mask):
    length = 2 * PICKED_AT_ONCE
    rows = Steps({"index": np.arange(length), "loss": np.arange(length) / 7.0})
    required = np.arange(length) % 3 > 0
    taken = rows.take(required if as_mask else np.flatnonzero(required))
    assert (len(taken), taken.seen) == (required.sum(), ("index", "loss"))
    assert taken.column("loss").tolist() == rows.column("loss")[required].tolist()
    assert taken.take(slice(2, 4)) == rows.take(np.array([4, 5]))
    assert taken[3] == rows[5]


def test_a_row_keeps_only_the_fields_that_were_given():
    row = Step(index=3, seconds=0.5, loss=2.5)
    assert vars(row) == {"index": 3, "seconds": 0.5, "loss": 2.5}
    assert (row.covers, row.line, row.tokens, row.interrupted_by) == (1, None, None, "")
    assert row.changed(covers=4) == Step(index=3, seconds=0.5, loss=2.5, covers=4)
    with pytest.raises(FrozenInstanceError):
        row.loss = 1.0


@in_each("fields", [{"index": 1}, {"seconds": 1.0}, {"index": 1, "seconds": 1.0, "tflops": 3.0}])
def test_a_row_without_its_number_or_with_an_unknown_field_is_refused(fields):
    with pytest.raises(TypeError, match="fields"):
        Step(**fields)


@given(steps)
def test_rows_can_be_read_and_changed_while_they_are_collected(rows):
    builder = StepsBuilder()
    for row in rows:
        builder.append(row)
    assert all(same(row, builder[place]) for place, row in enumerate(rows))
    for place in range(0, len(rows), 3):
        builder.change(place, memory_reserved_peak_bytes=5.0, loss=math.nan)
    expected = [
        row if place % 3 else row.changed(memory_reserved_peak_bytes=5.0, loss=math.nan)
        for place, row in enumerate(rows)
    ]
    assert all(map(same, expected, builder.build()))
