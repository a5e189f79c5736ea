"""Segments of a log: where a training began, restarted or resumed in it, and what each of them says of itself.

A file often holds more than one training: `tee -a`, a job that was requeued, an elastic restart, a resume. Every
segment is read by the same reader from its own lines alone, so that no reader can mix their settings. A segment that
states no settings (its iterations just go on, or go back) is read together with the lines that stood before the rows
of the segment before it, unless what it does state contradicts them.

A segment begins where rows stand before and after, and between them lies a line that frameworks and launchers write
when training starts or dies (STARTS, DEATH), or the end of a training (ENDS); where the number of the step goes back;
or where the reader says so (`Reading.begins`: another world size in the rows).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from tensorprimat.core.records import Result, SegmentFacts
from tensorprimat.core.steps import Steps
from tensorprimat.logs import endings, files
from tensorprimat.logs.format import Format, Reading
from tensorprimat.logs.text import HEAD_BYTES, Log, Part, lines_of

STARTS: dict[str, tuple[bytes, ...]] = {
    "launchers": (b"Setting OMP_NUM_THREADS", b"estarting worker group", b"WORLD INFO DICT"),
    "megatron": (
        *(b"- arguments -", b"using world size: ", b"[before the start of training step]", b"Begin Config File Dump"),
        *(b"loading checkpoint from", b"loaded checkpoint from", b"loading distributed checkpoint from"),
    ),
    "nemo": (
        *(b"GPU available: ", b"All distributed processes registered", b"Restoring states from the checkpoint path"),
        b"Loading distributed checkpoint",
    ),
    "torchtitan": (
        *(b"Starting job: ", b"Building device mesh with parallelism", b"-D device mesh with ["),
        *(b"Loading the checkpoint", b"Training starts at step "),
    ),
    "maxtext": (b"Config param ", b"System Information: Jax", b"Num_devices: ", b"estoring from this run"),
    "huggingface": (b"***** Running training *****", b"Continuing training from checkpoint"),
    "nanogpt": (
        *(b"tokens per iteration will be: ", b"Overriding: ", b"Resuming training from "),  # nanoGPT, LitGPT
        *(b"total desired batch size: ", b"Running Python ", b"Running PyTorch ", b"Running pytorch "),
        *(b"Distributed world size: ", b"Autodetected device type", b"Tokens / micro-batch / rank: "),
        *(b"Total batch size ", b"Resuming optimization from step", b"| Parameter "),
    ),
    "olmo": (b"TrainConfig(", b"Loading checkpoint from", b"Restoring from checkpoint"),
    "deepspeed": (b"DeepSpeedEngine configuration", b"DeepSpeed info: version", b"Loading checkpoint from"),
    "litgpt": (b"Seed set to ", b"Seed set to: ", b"'checkpoint_dir': "),
    "mlperf": (b'"init_start"', b'"submission_benchmark"'),
}
"""Text that each framework writes when training starts or resumes, and hardly ever else."""
ENDS: dict[str, tuple[bytes, ...]] = {
    "megatron": (b"[after training is done]",),
    "nemo": (b"`Trainer.fit` stopped",),
    "lightning": (b"`Trainer.fit` stopped",),
    "torchtitan": (b"Training completed",),
    "huggingface": (b"train_steps_per_second",),
    "nanogpt": (
        b"eak memory usage: ",
        b"eak memory allocated: ",
        b"eak memory consumption: ",
        b"Total training time: ",
    ),
    "litgpt": (b"Training Time", b"Training time: "),
    "mlperf": (b'"run_stop"',),
}
"""Text that a framework writes when training is over."""
DEATH = (b"slurmstepd: error", b"srun: error", b"CANCELLED AT", b"ChildFailedError", b"exitcode ", b"group FAILED")
"""What stands in a log when processes have ended early: rows that follow are another training's."""
CRASH = (b"Traceback (most recent call last)",)
"""May be a crash, or something that was caught: tells nothing by itself."""
PRELUDE = (b"NVIDIA-SMI ", b"ROCm System Management", b"SLURM_JOB", b"+ torchrun", b"+ srun", b"docker run")
"""What a job's script writes before it starts training: belongs to the training that follows, if one does."""

VAST = ("megatron",)
"""Formats whose readers pass over most of the text: to search all of it for marks would take longer than to read it."""
SHORT_BYTES = 2**21

MOST_STARTS = 8  # a line that stands between so many rows, and more than EVERY_ROWS, is none that starts a training
EVERY_ROWS = 0.1
UNUSUAL_LINES = 20  # beyond twice the median distance of rows: dumps of arguments have hundreds of lines
MOST_NAMED = 5  # segments in a warning
HEADER_BYTES = 64 * 2**20  # settings stand before the first row, if nowhere in so much text then nowhere
SEARCHED_BYTES = 64 * 2**20  # of a log whose rows are means, where no row has a line

NOT_COMPARED = frozenset(("max_steps", "seed", "learning_rate", "warmup_steps", "framework", "window"))
"""Settings that may differ between segments of one benchmark."""


class Mark(NamedTuple):
    """A line that tells that training starts or has ended."""

    line: int
    text: bytes
    kind: str


class Cut(NamedTuple):
    """The first line of a segment, and why it begins there."""

    line: int
    reason: str


@dataclass(frozen=True, kw_only=True)
class Segment:
    """One training in a log, by its own lines."""

    number: int
    """As --segment takes it: 1 is the first."""
    first_line: int
    last_line: int
    began_by: str
    inherits: bool
    """Settings that it does not state are those of the segment before it."""
    reading: Reading

    @property
    def steps(self) -> int:
        """Optimizer steps of its rows."""
        return int(self.reading.steps.column("covers").sum())

    @property
    def facts(self) -> dict[str, Any]:
        """What it states that must agree among segments of one benchmark."""
        said = {name: value for name, value in self.reading.training_config.items() if name not in NOT_COMPARED}
        said |= {f"model.{name}": value for name, value in self.reading.model.items()}
        if device := self.reading.gpu_info.get("device_name"):
            said["device_name"] = device
        return {name: value for name, value in said.items() if value is not None and value != {}}


def read(log: Log, format: Format) -> Result | list[Segment]:
    """Read every segment of a log with its own facts; a file that is a result record already comes back as that.

    A log that holds one training, or none, has one segment.
    """
    whole = format.read(log)
    if isinstance(whole, Result):
        return whole
    cuts = [] if log.is_folder or log.is_binary else _cuts(log, format, whole)
    found = list(_read_each(log, format, cuts)) if cuts else []
    one_benchmark = all(not differences(found[0], other) for other in found[1:])
    if not found or (one_benchmark and len(np.unique(whole.steps.column("run"))) > 1):  # the reader tells runs apart
        endings.examine(log, whole)
        lines = whole.steps.column("line")
        last = int(lines.max(initial=1))
        return [Segment(number=1, first_line=1, last_line=last, began_by="", inherits=False, reading=whole)]
    return found


def differences(one: Segment, other: Segment) -> dict[str, tuple[Any, Any]]:
    """Settings that both state and that differ: field → (value of one, value of the other)."""
    mine, theirs = one.facts, other.facts
    return {name: (mine[name], theirs[name]) for name in mine if name in theirs and mine[name] != theirs[name]}


def benchmark_of(found: Sequence[Segment], number: int | None) -> list[Segment]:
    """The segments that are measured as one benchmark, the one that tells its facts first.

    number: the only one wanted; None takes the longest, the later one of equals, with all of equal facts.
    """
    if number is not None:
        return [segment for segment in found if segment.number == number]
    longest = max(found, key=lambda segment: (segment.steps, segment.number))
    return [longest, *(s for s in found if s is not longest and not differences(longest, s))]


def joined(found: Sequence[Segment], measured: Sequence[Segment], *, picked: bool = False) -> Reading:
    """One reading of the measured segments: the facts of the first of them, the rows of all, in the order of the log.

    The others are told in a warning, with what makes them others. picked: the user named the one that is measured.
    """
    first = measured[0]
    if len(found) == 1:
        return first.reading
    in_order = sorted(measured, key=lambda segment: segment.number)
    steps = Steps.concatenate([s.reading.steps.replace(segment=s.number - 1) for s in in_order if len(s.reading.steps)])
    last = in_order[-1].reading
    warnings = [warning for segment in in_order for warning in segment.reading.warnings]
    return replace(
        first.reading,
        steps=steps,
        timestamp=in_order[0].reading.timestamp or first.reading.timestamp,
        complete=last.complete,
        ended_by=last.ended_by,
        warnings=[*_told(found, measured, picked=picked), *dict.fromkeys(warnings)],
        segments=_facts_of(found, measured),
    )


def _facts_of(found: Sequence[Segment], measured: Sequence[Segment]) -> tuple[SegmentFacts, ...]:
    return tuple(
        SegmentFacts(
            number=segment.number,
            first_line=segment.first_line,
            last_line=segment.last_line,
            began_by=segment.began_by or None,
            steps=segment.steps,
            same_benchmark=segment in measured,
            differs={name: str(other) for name, (_, other) in differences(measured[0], segment).items()},
        )
        for segment in found
    )


def _told(found: Sequence[Segment], measured: Sequence[Segment], *, picked: bool) -> Iterator[str]:
    """Name the segments that are not measured, with their own facts, and what is taken over by those that are."""
    others = [segment for segment in found if segment not in measured]
    ours = "; ".join(_place(segment) for segment in sorted(measured, key=lambda segment: segment.number))
    if others and picked:
        yield f"segments: the log holds {len(found)} trainings; this is {ours}"
    elif others:
        told = "; ".join(f"{_place(other)}, {_otherwise(measured[0], other)}" for other in others[:MOST_NAMED])
        more = f"; and {len(others) - MOST_NAMED} more" if len(others) > MOST_NAMED else ""
        yield (
            f"segments: the log holds {len(found)} trainings; measured: {ours}; not measured: {told}{more}; "
            f"--segment {others[0].number} reads one of them, --segments all writes a result for each"
        )
    inheriting = [str(segment.number) for segment in measured if segment.inherits]
    if inheriting:
        yield (
            f"segments: number {', '.join(inheriting)} does not state all settings, so the others are those of the "
            "training before it"
        )


def _place(segment: Segment) -> str:
    return f"number {segment.number} (lines {segment.first_line} to {segment.last_line}, {segment.steps} steps)"


def _otherwise(one: Segment, other: Segment) -> str:
    facts = [f"{name} {theirs} instead of {mine}" for name, (mine, theirs) in differences(one, other).items()]
    return "with " + ", ".join(facts) if facts else "with the same settings"


def _read_each(log: Log, format: Format, cuts: Sequence[Cut]) -> Iterator[Segment]:
    """Read the lines between cuts, each stretch by itself; one without rows (a crash before the first) is none."""
    firsts = [1, *(cut.line for cut in cuts)]
    *starts, end = files.offsets_of_lines(log.path, firsts)
    spans = list(zip(firsts, starts, [*starts[1:], end], strict=True))
    header: tuple[Part, ...] = ()
    before: Segment | None = None
    number = 0
    for (first, start, stop), reason in zip(spans, ["", *(cut.reason for cut in cuts)], strict=True):
        own = Part(first, start, stop)
        segment = _read_one(log, format, (own,), number + 1, reason)
        if segment is None and header:  # rows that cannot be read without what stands above them: those of a CSV
            segment = _read_one(log, format, (*header, own), number + 1, reason)
        if segment is None:
            continue
        inherited: tuple[Part, ...] = ()
        if before is not None and not differences(before, segment) and set(before.facts) - set(segment.facts):
            with_header = _read_one(log, format, (*header, own), number + 1, reason)
            if with_header is not None and not differences(with_header, segment):
                segment, inherited = replace(with_header, inherits=True, first_line=first), header
        number += 1
        header = (*inherited, *_header(log, segment, own))
        before = segment
        yield segment


def _read_one(log: Log, format: Format, parts: tuple[Part, ...], number: int, reason: str) -> Segment | None:
    """One segment; None where its lines hold no row and no rate."""
    part = replace(log, parts=parts)
    reading = format.read(part)
    if isinstance(reading, Result) or not (len(reading.steps) or reading.reported):
        return None
    endings.examine(part, reading)
    last = max(part.count_lines(), int(reading.steps.column("line").max(initial=1)))
    return Segment(
        number=number,
        first_line=parts[0].first_line,
        last_line=last,
        began_by=reason,
        inherits=False,
        reading=reading,
    )


def _header(log: Log, segment: Segment, own: Part) -> tuple[Part, ...]:
    """The lines of a segment before its first row: what states its settings."""
    lines = segment.reading.steps.column("line")
    if not len(lines) or (first_row := int(lines.min())) <= own.first_line:
        return ()
    stop = files.offsets_of_lines(log.path, [first_row])[0]
    return (Part(own.first_line, own.start, min(stop, own.start + HEADER_BYTES)),)


def _cuts(log: Log, format: Format, whole: Reading) -> list[Cut]:
    """Where segments begin, the first aside: at lines that grow."""
    rows, going_back = _rows_of(log, format, whole)
    if not len(rows):
        return []
    told = dict(whole.begins)
    marks = _believable(list(_marks(log, format, rows, whole)), rows)
    places = np.searchsorted(rows, [mark.line for mark in marks])
    by_gap: dict[int, list[Mark]] = {}
    for place, mark in zip(places.tolist(), marks, strict=True):
        if place == len(rows) or rows[place] != mark.line:  # a row itself is none
            by_gap.setdefault(place, []).append(mark)
    certain = {place: Cut(int(rows[place]), "the number of the step goes back") for place in going_back}
    certain |= {int(np.searchsorted(rows, line)): Cut(line, reason) for line, reason in told.items()}
    cuts: list[Cut] = []
    for gap in sorted({*by_gap, *certain}):
        if gap == 0 and gap not in by_gap:
            continue
        next_row = int(rows[gap]) if gap < len(rows) else None
        cuts += _cuts_in(by_gap.get(gap, []), certain.get(gap), next_row, is_first=gap == 0)
    return cuts


def _cuts_in(marks: Sequence[Mark], certain: Cut | None, next_row: int | None, *, is_first: bool) -> Iterator[Cut]:
    """Where segments begin between two rows. certain: where one does at the latest, if that is known beforehand."""
    ends = [mark for mark in marks if mark.kind == "end"]
    after = [mark for mark in marks if not ends or mark.line > ends[-1].line]
    starts = [mark for mark in after if mark.kind == "start"]
    deaths = [mark for mark in marks if mark.kind == "death"]
    at: int | None = None
    if not is_first and (certain or starts or ((ends or deaths) and next_row)):
        reason = certain.reason if certain else _reason(starts or ends or deaths)
        opening = [mark.line for mark in after if mark.kind in ("start", "prelude")]
        if certain:
            opening.append(certain.line)
        at = min(opening) if opening else ends[-1].line + 1 if ends else next_row
        if at is not None:
            yield Cut(at, reason)
    seen: set[bytes] = set()
    died = False
    for mark in marks:  # an attempt that died before its first row
        if mark.kind in ("death", "crash"):
            died = True
        elif mark.kind == "start" and (at is None or mark.line > at):
            if died and mark.text in seen:
                yield Cut(mark.line, _reason([mark]))
                seen, died = set(), False
            seen.add(mark.text)
        elif mark.kind == "start":
            seen.add(mark.text)


def _reason(marks: Sequence[Mark]) -> str:
    return f"'{marks[0].text.decode().strip()}' in line {marks[0].line}"


def _rows_of(log: Log, format: Format, whole: Reading) -> tuple[np.ndarray, list[int]]:
    """Lines of rows, ascending, and the positions among them at which a reader found that numbers go back."""
    lines, segment = whole.steps.column("line"), whole.steps.column("segment")
    known = lines > 0
    if not known.any():
        return np.array(list(_lines_of_rows(log, format)), np.int64), []
    lines, segment = lines[known], segment[known]
    if (np.diff(lines) > 0).all() and not segment.any():
        return lines, []
    order = np.argsort(lines, kind="stable")
    lines, segment = lines[order], np.maximum.accumulate(segment[order])
    return lines, (np.flatnonzero(np.diff(segment) > 0) + 1).tolist()


def _lines_of_rows(log: Log, format: Format) -> Iterator[int]:
    """Lines of rows in a log whose reader keeps none: it has means only."""
    if log.size_bytes > SEARCHED_BYTES:
        return
    for number, block in log.numbered_blocks(HEAD_BYTES):
        if any(needle in block for needle in format.needles):
            for line, text in lines_of(number, block):
                if any(needle in text.encode() for needle in format.needles) and format.detect(
                    Log(log.path, window=[(line, text)])
                ):
                    yield line


def _believable(marks: list[Mark], rows: np.ndarray) -> list[Mark]:
    """Leave out what stands between too many rows to be the start or the end of trainings."""
    gaps = {
        (mark.text, int(place))
        for mark, place in zip(marks, np.searchsorted(rows, [m.line for m in marks]), strict=True)
    }
    counted = Counter(text for text, _ in gaps)
    return [mark for mark in marks if counted[mark.text] <= max(MOST_STARTS, EVERY_ROWS * len(rows))]


def _marks(log: Log, format: Format, rows: np.ndarray, whole: Reading) -> Iterator[Mark]:
    """Every mark that lies between rows, before the first or behind the last, in the order of lines."""
    wanted = _searched(rows, whole, every_gap=format.name not in VAST)
    if format.name in VAST and log.size_bytes > SHORT_BYTES:
        wanted.pop()  # what follows the last row: facts are not looked for so late
    kinds = _literals(format)
    firsts, lasts = np.array(wanted, np.int64).reshape(-1, 2).T
    for number, block in log.numbered_blocks():
        if not len(lasts) or number > lasts[-1]:
            return
        begin = int(np.searchsorted(lasts, number))
        ends = np.flatnonzero(files.line_ends(block))
        end = int(np.searchsorted(firsts, number + len(ends), side="right"))
        if begin < end:  # from the first line that is wanted in this block to the last
            skipped = max(0, int(firsts[begin]) - number)
            taken = min(len(ends), int(lasts[end - 1]) - number + 1)
            start = int(ends[skipped - 1]) + 1 if skipped else 0
            stop = int(ends[taken - 1]) + 1 if taken < len(ends) else len(block)
            yield from _marks_in(number + skipped, block[start:stop], kinds)


def _marks_in(number: int, block: bytes, kinds: Mapping[bytes, str]) -> Iterator[Mark]:
    found: list[tuple[int, bytes]] = []
    for text in kinds:
        at = block.find(text)
        while at >= 0:
            found.append((at, text))
            at = block.find(text, at + len(text))
    counted = 0
    for at, text in sorted(found):
        number += block.count(b"\n", counted, at)
        counted = at
        yield Mark(number, text, kinds[text])


def _literals(format: Format) -> dict[bytes, str]:
    return {
        **dict.fromkeys(PRELUDE, "prelude"),
        **dict.fromkeys(CRASH, "crash"),
        **dict.fromkeys(DEATH, "death"),
        **{text: "start" for texts in STARTS.values() for text in texts},
        **dict.fromkeys(ENDS.get(format.name, ()), "end"),
    }


def _searched(rows: np.ndarray, whole: Reading, *, every_gap: bool) -> list[tuple[int, int]]:
    """First and last line of each gap between rows that may hold a start; of VAST formats the unusual ones alone."""
    distance = np.diff(rows)
    if every_gap:
        inside = distance > 1
    else:
        usual = float(np.median(distance)) if len(distance) else 1.0
        inside = distance > 2 * usual + UNUSUAL_LINES
        segment = whole.steps.column("segment")
        if len(segment) == len(rows):
            inside |= (np.diff(segment) != 0) & (distance > 1)
    gaps = [(int(rows[n]) + 1, int(rows[n + 1]) - 1) for n in np.flatnonzero(inside).tolist()]
    head = [(1, int(rows[0]) - 1)] if rows[0] > 1 else []
    tail = [(int(rows[-1]) + 1, 2**62)]
    return [*head, *gaps, *tail]
