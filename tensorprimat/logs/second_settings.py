"""Settings that a log states a second time, with other values: another training follows.

Frameworks and launchers write known lines when training starts (`starts`). If two logs were joined at an arbitrary
line, these lines can be missing: only part of a banner is left, or a dump of arguments without its first line. The
reader finds such a start too: it reads the lines between two rows alone, and compares the settings with those before.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

from tensorprimat.logs import files
from tensorprimat.logs.format import Format, Reading
from tensorprimat.logs.starts import Cut
from tensorprimat.logs.text import Log, Part

_MOST_BYTES = 8 * 2**20  # between rows; a longer text states settings once, if at all
MOST_STRETCHES = 100  # that are read one by one if together they state other settings
ROWS_READ = 5  # enough for a reader to recognise its format, in addition to lines without rows

NOT_COMPARED = frozenset(("max_steps", "seed", "learning_rate", "warmup_steps", "window"))
"""Settings that may differ between segments of one benchmark."""


def facts_of(reading: Reading) -> dict[str, Any]:
    """Return the stated facts that must agree among segments of one benchmark."""
    settings = {name: value for name, value in reading.training_config.items() if name not in NOT_COMPARED}
    settings |= {f"model.{name}": value for name, value in reading.model.items()} | reading.facts
    settings |= {name: reading.gpu_info.get(name) for name in ("device_name", "pytorch_version", "software_version")}
    return {name: value for name, value in settings.items() if value is not None and value != {}}


def restated_cuts(log: Log, format: Format, stretches: Sequence[tuple[int, int]], first_row: int) -> Iterator[Cut]:
    """Yield the first line of each stretch that states another value of a setting than was stated before.

    stretches: first and last line of each, ascending; those before the first row each contain a whole attempt to start.
    """
    if not stretches:
        return
    ends = sorted(
        {line for first, last in stretches for line in (first, last + 1)} | {1, first_row, first_row + ROWS_READ}
    )
    offsets = dict(zip(ends, files.offsets_of_lines(log.path, ends), strict=False))

    def part(first: int, last: int) -> Part:
        return Part(first, offsets[first], offsets[last + 1])

    parts = [part(*stretch) for stretch in stretches]
    if sum(one.stop - one.start for one in parts) > _MOST_BYTES:
        return
    rows = part(first_row, first_row + ROWS_READ - 1)

    def stated(parts: Sequence[Part], left_out: Collection[str]) -> dict[str, Any]:
        reading = format.read(replace(log, parts=(*parts, rows)))
        if not isinstance(reading, Reading):
            return {}
        return {name: fact for name, fact in facts_of(reading).items() if name not in (*reading.by_rows, *left_out)}

    by_rows = stated([], ()).keys()  # facts that the rows alone give
    known = stated([part(1, min(stretches[0][0], first_row) - 1)] if stretches[0][0] > 1 else [], by_rows)
    several = any(second[0] < first_row for _, second in pairwise(stretches))  # reading them together keeps one value
    if not _changed(known, stated(parts, by_rows)) and not several:
        return
    for one in parts[:MOST_STRETCHES]:
        settings = stated([one], by_rows)
        if changed := _changed(known, settings):
            name, (before, after) = next(iter(changed.items()))
            yield Cut(one.first_line, f"{name} is stated again, as {after} instead of {before}")
        known = {**known, **settings}


def _changed(known: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    return {name: (known[name], settings[name]) for name in settings if name in known and known[name] != settings[name]}
