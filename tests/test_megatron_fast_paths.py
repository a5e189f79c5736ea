"""Tests that the Megatron reader's fast paths give the values of line-by-line reading: search, digits, restarts."""

import numpy as np
import scratch
from drawn import examples
from hypothesis import given
from hypothesis import strategies as st

from tensorprimat.logs.format import Reading
from tensorprimat.logs.megatron import reader as megatron
from tensorprimat.logs.megatron.layout import NEEDLE, Layout, Template
from tensorprimat.logs.megatron.order import segments_of
from tensorprimat.logs.megatron.rows import EVENT, find_mentions
from tensorprimat.logs.text import Log

PARTS = st.sampled_from(
    [NEEDLE, EVENT, b"iteration", b"iter", b"eration", b" at iteration", b"per iteration ", b"operation", b"\n", b" at"]
)


def places(block: bytes, word: bytes) -> list[int]:
    return [at for at in range(len(block)) if block.startswith(word, at)]


@given(st.lists(st.one_of(PARTS, st.binary(max_size=9))))
def test_the_search_finds_every_row_and_event_wherever_it_is_in_the_block(parts: list[bytes]) -> None:
    block = b"".join(parts)
    rows, events = find_mentions(block)
    assert rows.tolist() == places(block, NEEDLE)
    assert events == places(block, EVENT)


def same_shape(text: str, digits: list[int]) -> str:
    """Return the text with other digits."""
    numbers = iter(digits)
    return "".join(str(next(numbers)) if sign.isdigit() else sign for sign in text)


SPELLED = st.one_of(
    st.floats(0, 1e12).map(lambda value: f"{value:.1f}"),
    st.floats(-1e3, 1e3).map(lambda value: f"{value:.6E}"),
    st.integers(0, 10**15 - 1).map(str),
    st.integers(0, 10**18).map(lambda value: f"{value:,}"),
    st.floats(0, 1).map(lambda value: f"{value:.14f}"),
    st.floats(1e-300, 1e300).map(lambda value: f"{value:.3e}"),
)


@given(SPELLED, SPELLED, st.lists(st.integers(0, 9), min_size=60, max_size=60), st.sampled_from(["", "3: ", "x "]))
def test_digits_read_as_machine_words_give_the_number_that_float_reads(
    loss: str, norm: str, digits: list[int], prefix: str
) -> None:
    line = f"{prefix}iteration 7/9 | elapsed time per iteration (ms): 12.5 | lm loss: {loss} | grad norm: {norm} |"
    other_loss, other_norm = same_shape(loss, digits[:30]), same_shape(norm, digits[30:])
    other = line.replace(f"loss: {loss} ", f"loss: {other_loss} ").replace(f"norm: {norm} ", f"norm: {other_norm} ")
    layout = Layout.of(line.encode())
    assert layout is not None
    template = Template.of(line.encode(), layout)
    rows = np.frombuffer((line + other).encode(), np.uint8).reshape(2, -1)
    assert template.fits(rows).all()
    fields = template.read(rows)
    assert fields["loss"].tolist() == [float(text.replace(",", "")) for text in (loss, other_loss)]
    assert fields["gradient_norm"].tolist() == [float(text.replace(",", "")) for text in (norm, other_norm)]
    assert fields["seconds"].tolist() == [0.0125, 0.0125]


def one_by_one(index: list[int], content: list[float]) -> list[tuple[bool, int]]:
    """Return restarts and repetitions as their definition says, line by line."""
    found: list[tuple[bool, int]] = []
    seen: set[tuple[int, float]] = set()
    segment, last = 0, 0
    for number, printed in zip(index, content, strict=True):
        repeated = (number, printed) in seen
        if not repeated and number <= last:
            segment, seen = segment + 1, set()
        seen.add((number, printed))
        found.append((not repeated, segment))
        last = last if repeated else number
    return found


@given(st.lists(st.tuples(st.integers(1, 9), st.sampled_from([1.0, 2.0, 3.0])), max_size=30))
def test_restarts_and_repetitions_equal_those_of_a_reading_line_by_line(lines: list[tuple[int, float]]) -> None:
    index, seconds = [number for number, _ in lines], [printed for _, printed in lines]
    kept, segment = segments_of(np.array(index, float), [np.array(seconds)], None, np.array(seconds))
    assert list(zip(kept.tolist(), segment.tolist(), strict=True)) == one_by_one(index, seconds)


@examples(10)
@given(st.data())
def test_line_numbers_and_events_are_right_in_dense_and_sparse_stretches(data: st.DataObject) -> None:
    lines: list[str] = []
    planted: list[tuple[int, int]] = []
    checkpoints = set()
    for number in range(1, data.draw(st.integers(2, 40))):
        lines += ["noise of an operation"] * data.draw(st.sampled_from([0, 0, 0, 1, 700]))
        if data.draw(st.booleans()) and number > 1:
            lines.append(f"  saving checkpoint at iteration {number - 1:7d} to here")
            checkpoints.add(number)
        lines.append(f" iteration {number}/99 | elapsed time per iteration (ms): {number}.5 | lm loss: 2.5E+00 |")
        planted.append((number, len(lines)))
    with scratch.written("\n".join(lines) + "\n") as path:
        reading = megatron.read(Log(path))
    assert isinstance(reading, Reading)
    assert [(step.index, step.line) for step in reading.steps] == planted
    assert {step.index for step in reading.steps if step.interrupted_by} == checkpoints
