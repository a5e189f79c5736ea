"""Records of a survey: each file that was found, with its content or the reason why it cannot be read."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from tensorprimat.core.profile import Profile
from tensorprimat.core.result import Result
from tensorprimat.core.steps import Steps


@dataclass(frozen=True, kw_only=True)
class Item:
    """One input of a survey: a file, a folder of events, or the workbooks of one run."""

    path: Path
    root: Path
    """The folder that the user named; folders above it say nothing about the file."""
    ranks: tuple[Path, ...] = ()
    """The workbooks of a profile."""
    problem: str | None = None
    """Reason why it cannot be read."""


@dataclass(frozen=True, kw_only=True)
class SurveyedFile:
    """The content of an item: a result, a profile or a problem; none of them if it is not training data."""

    item: Item
    result: Result | None = None
    profile: Profile | None = None
    problem: str | None = None

    @property
    def path(self) -> Path:
        """Return the path to show to the user."""
        return self.item.path

    def without_steps(self) -> SurveyedFile:
        """Return a copy without series, small enough to keep while thousands of others are read."""
        slim = self.result and self.result.changed(steps=Steps({}))
        return replace(self, result=slim)

    @property
    def format(self) -> str | None:
        """Return the name of the log format; "result" if the item already is a result record."""
        if self.profile is not None:
            return "excel"
        if self.result is None:
            return None
        read_here = any(source.file == self.path.name for source in self.result.provenance.sources)
        return self.result.provenance.format if read_here else "result"

    @property
    def is_foreign(self) -> bool:
        """Return True if nothing in the item looks like training data."""
        return self.result is None and self.profile is None and self.problem is None


@dataclass(frozen=True, kw_only=True)
class Survey:
    """The findings in folders."""

    places: tuple[Path, ...]
    found: tuple[SurveyedFile, ...]
    foreign: int
    """Files without training data."""
    saved: tuple[Path, ...] = ()
    """Result files that were written."""
    notes: tuple[str, ...] = ()
    """Sentences about logs that were saved together or separately."""

    @property
    def is_usable(self) -> bool:
        """Return True if any file contains training data."""
        return any(finding.result or finding.profile for finding in self.found)
