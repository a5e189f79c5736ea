"""Origin of a result's figures: engine, log, source files, segments, and the audit by the log's own clock."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator

from tensorprimat.audit.evidence import DATES
from tensorprimat.core.records import LARGEST_COUNT, Count, Finite, Record, RoundedRecord


class Audit(RoundedRecord):
    """Comparison of a result's rate with the log's own clock: see core.audit."""

    clock: str | None = None
    """Clock of the log that was used: run_start to run_stop, train_runtime, the timestamps of the rows …"""
    work: Finite = None
    """Work between the two readings of the clock, in `work_unit`."""
    work_unit: Literal["tokens", "samples", "steps"] = "steps"
    """Unit of `work`."""
    clock_seconds: Finite = None
    """Seconds of the clock, without evaluation and checkpoints that the log itself times."""
    ratio: Finite = None
    """The result's rate divided by the rate of the clock (work / clock_seconds); 1 if both agree."""
    explained_by: tuple[str, ...] = ()
    """Causes of the difference, each with its seconds: "start-up 212 s"."""
    unexplained_seconds: Finite = None
    """Seconds without an explanation, beyond rounding: those of the clock minus those of the rows, so it is negative if
    the rows have more."""

    @field_validator("clock")
    @classmethod
    def _present_name(cls, clock: str | None) -> str | None:
        """Return the present name of the clock: files from before 2026-11-25 have another one for timestamps."""
        return DATES if clock == "the dates of the rows" else clock


class Source(Record):
    """A file that figures were read from."""

    file: str
    """Name without its folder."""
    sha256: str | None = None
    """SHA-256 of the file."""
    size_bytes: Count = None
    """Bytes that the digest covers."""
    format: str | None = None
    """Log format by its name in tensorprimat.logs.FORMATS."""
    modified_at: str | None = None
    """Time of the last change (ISO 8601, UTC)."""


class SegmentFacts(Record):
    """One training in a log that contains several: a second job, a restart or a resume."""

    number: int
    """Number of the training, as --segment takes it: 1 is the first."""
    first_line: int
    """Number of its first line in the log."""
    last_line: int
    """Number of its last line in the log."""
    began_by: str | None = None
    """Evidence that a training begins there: the line of a launcher or framework, a step number that goes back …"""
    steps: Count = None
    """Optimizer steps of its rows."""
    same_benchmark: bool
    """True if this result contains the rows of this segment; False for one with other settings, or not selected."""
    differs: dict[str, str] = Field(default_factory=dict)
    """Settings of this segment that differ from those of this result."""


FROM_PATH = "path "
"""Beginning of an origin in `Provenance.assumed`: the path of the file states the fact, not its content."""


LOGS = "logs"
"""Engine of a result that was read from a log."""


class Provenance(Record):
    """The origin of the figures: engine, log format, timing, source files."""

    engine: str | None = None
    """nemo, bridge, primus or torch; logs for a log; mlperf or published for a published result."""
    format: str | None = None
    """Log format by its name in tensorprimat.logs.FORMATS; None for a live run."""
    timing: Literal["measured", "reported", "timestamps"] | None = None
    """measured by BenchmarkCallback, reported by the framework in its log, or from the timestamps of a log's rows."""
    timer: str | None = None
    """Timer of a live run: device events, synchronised wall clock …; for a log with rates but no times, the column from
    which the times were computed."""
    rounding: Finite = None
    """Largest relative error that the last printed digit leaves in the mean step time or rate of a log; None where the
    log does not show it, and for a live run."""
    sources: tuple[Source, ...] = ()
    segments: tuple[SegmentFacts, ...] = ()
    """All trainings of a log that contains several."""
    segment: int | None = None
    """Number of the segment that --segment selected; 1 is the first."""
    host: str | None = None
    """Name of the machine that ran the training."""
    gpu_ids: tuple[str, ...] = ()
    """Identities of the GPUs of a live run, from their UUIDs."""
    command: str | None = None
    """Command line of a live run."""
    commit: str | None = None
    """Beginning of the hash that the git repository around the working folder of a live run had checked out."""
    tool_version: str | None = None
    """Version of TensorPrimat."""
    looks: int = Field(default=1, ge=1, le=LARGEST_COUNT)
    """Number of times that the user could look at a verdict while runs were added (`--append`, `--target-ci`), this
    time included. Each further look needs a higher confidence for a verdict."""
    overhead: Finite = None
    """Share by which the measurement made a step longer, as `tprimat overhead` measured it."""
    overhead_half_width: Finite = None
    """Half the width of its interval of 95 %."""
    profiled: bool = False
    """True if a profiler slowed this run down; such a run never enters a comparison."""
    citations: dict[str, str] = Field(default_factory=dict)
    """Settings that one line of the log states, with that line: {"sequence_length": "run.log:12", "model.name": …}."""
    arguments: dict[str, str] = Field(default_factory=dict)
    """Arguments that the log prints before its first row and that are no setting of this file, without places and
    lengths of a single run: {"softmax_type": "learnable"}."""
    assumed: dict[str, str] = Field(default_factory=dict)
    """Facts that neither the run nor a setting of the log states, with their origin: {"sequence_length":
    "--sequence-length"}."""

    @property
    def named_by_path(self) -> list[str]:
        """Return the fields that only the path of the file states."""
        return [name for name, origin in self.assumed.items() if origin.startswith(FROM_PATH)]
