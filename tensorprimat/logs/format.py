"""The interface of log formats and their readers. One file per family of formats; `FORMATS` in `logs` is the table.

A reader turns text into a `Reading`: steps, and the configuration that the log itself states. It never computes a rate,
never fills in a default and never looks at the file's name. `logs.read` combines a Reading with the user's flags
(`UserFacts`), and core/summary computes the figures.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from tensorprimat.audit.evidence import Evidence
from tensorprimat.core.provenance import SegmentFacts
from tensorprimat.core.result import Platform, Result
from tensorprimat.core.steps import Steps
from tensorprimat.core.user_facts import UserFacts
from tensorprimat.facts import devices

if TYPE_CHECKING:
    from tensorprimat.logs.text import Log

__all__ = ["Format", "Reading", "UserFacts"]


@dataclass(kw_only=True)
class Reading:
    """The content of one log. Each dictionary contains only those fields of its record that the log states.

    A reader fills it while it reads; one that must remember more derives a class with further fields.
    """

    steps: Steps = field(default_factory=lambda: Steps({}))
    training_config: dict[str, Any] = field(default_factory=dict)
    """Fields of core.result.TrainingConfig."""
    gpu_info: dict[str, Any] = field(default_factory=dict)
    """Fields of core.result.GpuInfo."""
    model: dict[str, Any] = field(default_factory=dict)
    """Fields of core.result.Model; shape only where the log states every number of it."""
    reported: dict[str, Any] = field(default_factory=dict)
    """Fields of core.result.Reported that the log states once for the whole run."""
    run_facts: list[dict[str, Any]] = field(default_factory=list)
    """Fields of core.result.Run that the log states of each run, in their order."""
    platform: Platform | None = None
    """The platform, where the log shows it by anything else than the name of the device."""
    source: str | None = None
    """Program that wrote the log, as reports name it: "Primus (Megatron backend)", "NeMo 2" …"""
    timestamp: str | None = None
    """The log's own date, ISO 8601."""
    host: str | None = None
    complete: bool = True
    ended_by: str | None = None
    """Reason why the run ended early, from the log: traceback, cancelled, out of memory …"""
    timing: Literal["reported", "timestamps"] = "reported"
    """reported: times are the framework's own; timestamps: they follow from the moments at which rows were written."""
    evidence: Evidence = field(default_factory=Evidence)
    """Readings of the log's own clock, for the closing audit; the dates of rows are in the steps."""
    assumed: dict[str, str] = field(default_factory=dict)
    """Facts that the log does not state itself, with their origin, as in core.provenance.Provenance.assumed."""
    warnings: list[str] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)
    """Warnings about text that was not read, which may belong to a training of which no row was read."""
    timer: str | None = None
    """Column of a printed rate from which the reader computed the times of rows, where no line prints an exact time."""
    begins: list[tuple[int, str]] = field(default_factory=list)
    """(line, reason) where another training begins, as the rows of this format show it: another world size."""
    by_rows: frozenset[str] = frozenset()
    """Fields of training_config that follow from figures of rows; no line states them."""
    facts: dict[str, float] = field(default_factory=dict)
    """Amounts that all rows share and no setting names; they must agree among segments of one benchmark."""
    kept: list[str] = field(default_factory=list)
    """Lines of which a hook reads more than the table of its dialect can state."""
    segments: tuple[SegmentFacts, ...] = ()
    """The trainings of the log, where it contains several; `assemble.joined_segments` fills it."""

    def note_device(self, text: str) -> None:
        """Take the device that a text names, unless one is known."""
        if "device_name" not in self.gpu_info and (name := devices.find_name(text)):
            self.gpu_info["device_name"] = name


@dataclass(frozen=True, kw_only=True)
class Sample:
    """Rows as a format writes them, of this project's own, and what its reader must make of them."""

    text: str
    """One row, or the lines that make one, with `{0}` for its number."""
    gives: Mapping[str, float | str] = field(default_factory=dict)
    """Columns of the step of the last row, and fields of TrainingConfig; without `index` there is no step."""

    def log(self) -> str:
        """Return a log of these rows."""
        return "".join(f"{self.text.format(number)}\n" for number in range(1, ROWS_OF_SAMPLE + 1))


ROWS_OF_SAMPLE = 8


@dataclass(frozen=True, kw_only=True)
class Format:
    """One row of FORMATS."""

    name: str
    """Value of --format and of provenance.format."""
    reads: str
    """Frameworks and spellings that it reads, for `tprimat extract --formats`."""
    looks_for: str
    """Text by which a reader recognises it, for refusals: "lines with 'elapsed time per iteration (ms):'"."""
    needles: tuple[bytes, ...] = ()
    """Every row contains one of these: text without any of them is skipped. () for a format that is not text, and for a
    last resort."""
    detect: Callable[[Log], int]
    """Function that counts the rows in the head of the log which only this format writes; 0 means another format."""
    read: Callable[[Log], Reading | Result]
    """Function that reads the whole log and skips rows that it cannot use. A log without a usable step gives empty
    steps; the tool's own result record is returned as a Result."""
    runs: Callable[[Log], Sequence[str]] | None = None
    """Function that returns the identifiers of the runs in a file that may hold several, in the order in which they
    began."""
    starts: tuple[bytes, ...] = ()
    """Texts that the framework writes when training starts or resumes, and hardly ever otherwise."""
    settings: tuple[bytes, ...] = ()
    """Settings that it prints before the line that starts training; they belong to that training."""
    ends: tuple[bytes, ...] = ()
    """Texts that the framework writes when training is over."""
    together: tuple[str, ...] = ()
    """Other frameworks whose starting lines occur in the same training's log; those of all others are foreign."""
    yields_to: tuple[str, ...] = ()
    """Formats that time whole steps of the same training, of which this one's rows time a part."""
    falls_back_to: tuple[str, ...] = ()
    """Formats that time whole steps of the same training by fewer rows, read where this one's contradict the log."""
    opens: str = ""
    """Expression of the first line of a row that the reader places on the last of its lines."""
    last_resort: bool = False
    """True if the format is tried only where no other format finds anything in the whole file."""
    samples: tuple[Sample, ...] = ()
    """Rows that the reader is tested with, and from which its fuzzing begins; () for a format that is not text."""
