"""The findings of a survey as tables, JSON, CSV and Markdown."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from tensorprimat.core import quantities
from tensorprimat.core.folders import common_folder
from tensorprimat.core.profile import Profile, ratio
from tensorprimat.core.result import Result
from tensorprimat.core.survey import Survey, SurveyedFile
from tensorprimat.core.units import GB
from tensorprimat.reports import console, harmless, markdown
from tensorprimat.reports.tables import Table, TableCell, TableRow, csv_of, figure_cell, headed, table_of, text_cell
from tensorprimat.system.safe_text import one_line

MOST_PROBLEMS = 50  # lines of a screen; --json has them all
MOST_PARTS = 100  # rows of a profile; --json has them all
_MOST_WARNINGS = 20
PLAIN_WIDTH = 1000  # columns of a table that is not printed on a terminal
_LEFT_OUT_FIRST = ("Warnings", "Precision", "Format", "GPU", "Model")  # columns that a narrow terminal does without

SurveyValue = str | float | int | None


def _of_result(read: Callable[[Result], SurveyValue]) -> Callable[[SurveyedFile], SurveyValue]:
    return lambda finding: None if finding.result is None else read(finding.result)


SURVEY_COLUMNS: Mapping[str, Callable[[SurveyedFile], SurveyValue]] = {
    "file": lambda finding: str(finding.path),
    "format": lambda finding: finding.format,
    "model": _of_result(lambda result: result.model.name),
    "precision": _of_result(lambda result: result.training_config.precision),
    "gpu": _of_result(lambda result: result.gpu_info.device_name),
    "num_gpus": _of_result(lambda result: result.training_config.num_gpus),
    "total_steps": _of_result(lambda result: result.performance_metrics.total_steps),
    "measured_steps": _of_result(lambda result: result.performance_metrics.measured_steps),
    "tokens_per_second_per_gpu": _of_result(lambda result: result.performance_metrics.tokens_per_second_per_gpu),
    "tokens_per_second": _of_result(lambda result: result.performance_metrics.tokens_per_second),
    "samples_per_second": _of_result(lambda result: result.performance_metrics.samples_per_second),
    "avg_step_time_seconds": _of_result(lambda result: result.performance_metrics.avg_step_time_seconds),
    "complete": _of_result(lambda result: str(result.complete).lower()),
    "from_path": _of_result(lambda result: " ".join(result.provenance.named_by_path)),
    "warnings": lambda finding: " | ".join(_warnings(finding)),
    "problem": lambda finding: finding.problem,
}
"""Columns of --csv, in their order."""


def _warnings(finding: SurveyedFile) -> tuple[str, ...]:
    if finding.result is not None:
        return finding.result.warnings
    return finding.profile.warnings if finding.profile is not None else ()


def render_json(survey: Survey) -> str:
    rows = []
    for finding in survey.found:
        row: dict[str, Any] = {name: read(finding) for name, read in SURVEY_COLUMNS.items()}
        row |= {"complete": finding.result.complete if finding.result else None, "warnings": _warnings(finding)}
        row["from_path"] = finding.result.provenance.named_by_path if finding.result else []
        if finding.profile is not None:
            row["profile"] = dataclasses.asdict(finding.profile)
        rows.append(row)
    pair = _pair(survey.found)
    document = {
        "files": rows,
        "other_files": survey.foreign,
        "profile_comparison": compare_profiles(*pair) if pair else None,
        "saved": [str(path) for path in survey.saved],
    }
    return json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False)


def render_survey(survey: Survey, ending: str) -> str:
    """Return the findings as text in the format that a file name's suffix selects."""
    if ending == ".json":
        return render_json(replace(survey, saved=())) + "\n"
    if ending == ".csv":
        return render_csv(survey.found)
    results = [finding for finding in survey.found if finding.result is not None]
    return f"# Training data\n\n{markdown.table(_table(results))}\n"


def render_csv(found: Sequence[SurveyedFile]) -> str:
    """Return one line for each file."""
    return csv_of(SURVEY_COLUMNS, ([read(finding) for read in SURVEY_COLUMNS.values()] for finding in found))


def print_survey(found: Sequence[SurveyedFile], foreign: int) -> None:
    """Print the findings as tables, with their warnings and problems."""
    screen = harmless.console(highlight=False, markup=False, emoji=False)
    if not screen.is_terminal:
        screen = harmless.console(highlight=False, markup=False, emoji=False, width=PLAIN_WIDTH)
    results = [finding for finding in found if finding.result is not None]
    if results:
        if screen.is_terminal:
            folder = common_folder(finding.path for finding in results)
            if folder != Path():
                screen.print(Text(f"Files in {one_line(folder)}", style="dim"), soft_wrap=True)
            console.print_fitting(_table(results, folder), _LEFT_OUT_FIRST, screen, places="--csv")
        else:
            screen.print(console.table(_table(results)))
        if any(finding.result.provenance.named_by_path for finding in results if finding.result):
            screen.print(Text("* named by the path, not by the file", style="dim"))
    _show_warnings(screen, found)
    for content in _profile_tables(found):
        screen.print(Text(f"\n{one_line(content.title)}", style="bold"))
        screen.print(console.fitting(content, width=screen.width))
        if content.note:
            screen.print(Text(content.note, style="dim"))
    problems = [finding for finding in found if finding.problem is not None]
    if problems:
        screen.print(Text(f"\nCould not be used: {len(problems)}", style="bold"))
        for finding in problems[:MOST_PROBLEMS]:
            screen.print(Text(f"  {one_line(finding.path)}: {one_line(finding.problem)}"), soft_wrap=True)
        if len(problems) > MOST_PROBLEMS:
            screen.print(Text(f"  … and {len(problems) - MOST_PROBLEMS} more; --json lists them all"))
    if foreign:
        files = "1 other file holds" if foreign == 1 else f"{foreign} other files hold"
        screen.print(Text(f"\n{files} no training data", style="dim"))


def _inside(folder: Path, path: Path) -> Path:
    return path.relative_to(folder) if folder != Path() else path


def _show_warnings(screen: Console, found: Sequence[SurveyedFile]) -> None:
    """Print each warning once, the most frequent first, with the number of files that have it."""
    counts = Counter(warning for finding in found for warning in _warnings(finding))
    if counts:
        screen.print(Text("\nWarnings", style="bold"))
    for warning, count in counts.most_common(_MOST_WARNINGS):
        about = f" ({count} files)" if count > 1 else ""
        screen.print(Text(f"  {one_line(warning)}{about}", style="yellow"), soft_wrap=True)
    if len(counts) > _MOST_WARNINGS:
        screen.print(Text(f"  … and {len(counts) - _MOST_WARNINGS} more; --json lists them by file"))


def _table(findings: Sequence[SurveyedFile], folder: Path = Path()) -> Table:
    """Return a row for each result. folder: the paths are relative to it."""
    results = [(finding, finding.result) for finding in findings if finding.result is not None]
    words = ("File", "Format", "Model", "Precision", "GPU")
    return table_of("files", "Files", [_row(finding, result, folder) for finding, result in results], words=words)


def _row(finding: SurveyedFile, result: Result, folder: Path) -> TableRow:
    config, performance = result.training_config, result.performance_metrics
    from_path = result.provenance.named_by_path
    gpus = f"{config.num_gpus} × " if config.num_gpus and result.gpu_info.device_name else ""
    return {
        "File": str(_inside(folder, finding.path)),
        "Format": finding.format if result.complete else f"{finding.format}, incomplete",
        "Model": _marked(result.model.name, "model.name" in from_path),
        "Precision": _marked(config.precision, "precision" in from_path),
        "GPU": f"{gpus}{result.gpu_info.device_name}" if result.gpu_info.device_name else None,
        "Steps": figure_cell(performance.total_steps, quantities.count),
        "tokens/s/GPU": figure_cell(performance.tokens_per_second_per_gpu, quantities.rate),
        "Warnings": figure_cell(len(result.warnings), quantities.count),
    }


def _marked(name: str | None, from_path: bool) -> str | None:
    return f"{name}*" if name and from_path else name


def _pair(found: Sequence[SurveyedFile]) -> tuple[Profile, Profile] | None:
    """Return the two profiles to show side by side, if there are exactly two."""
    timed = [finding.profile for finding in found if finding.profile is not None and finding.profile.timelines]
    return (timed[0], timed[1]) if len(timed) == 2 else None


def _profile_tables(found: Sequence[SurveyedFile]) -> Iterator[Table]:
    profiles = [(finding, finding.profile) for finding in found if finding.profile is not None]
    timed = [(finding, shown) for finding, shown in profiles if shown.timelines or shown.kernels]
    if timed:
        yield _parts(timed, _pair(found))
    for finding, shown in profiles:
        if shown.collectives:
            yield _collectives(finding, shown)


def _parts(profiles: Sequence[tuple[SurveyedFile, Profile]], pair: tuple[Profile, Profile] | None) -> Table:
    """Return the parts of the wall time and the kernels as rows, profiles as columns; for two profiles their ratio."""
    columns = [{name: part for name, part in shown.parts().items() if part[0] is not None} for _, shown in profiles]
    ratios = {row["name"]: row["ratio"] for row in compare_profiles(*pair)} if pair else {}
    rows = []
    names = list(dict.fromkeys(name for column in columns for name in column))
    for name in names[:MOST_PARTS]:
        cells = [text_cell(name)]
        for column in columns:
            cells.append(_time_and_share(*column[name]) if name in column else text_cell(None))
        rows.append((*cells, *([figure_cell(ratios.get(name), quantities.times)] if pair else [])))
    folder = common_folder(finding.path for finding, _ in profiles)
    names_of_files = [one_line(_inside(folder, finding.path)) for finding, _ in profiles]
    titles = ["Part", *names_of_files, *(["second / first"] if pair else [])]
    return Table(
        key="profiles",
        title="Profiles: times of the profiled steps, mean over ranks",
        columns=headed(titles, words=("Part",)),
        rows=tuple(rows),
        note=_not_shown(len(names) - MOST_PARTS, "categories of kernels"),
    )


def _not_shown(number: int, rows: str) -> str | None:
    return f"{quantities.count(number)} more {rows}: --json shows all" if number > 0 else None


def _time_and_share(seconds: float | None, share: float | None) -> TableCell:
    shown = f" ({quantities.percent(share)})" if share is not None else ""
    return TableCell(text=f"{quantities.seconds(seconds)}{shown}", value=seconds)


def _collectives(finding: SurveyedFile, shown: Profile) -> Table:
    rows: list[TableRow] = [
        {
            "Collective": row.name,
            "Type": row.dtype,
            "GPUs": figure_cell(row.group_size, quantities.count),
            "Message": figure_cell(row.message_bytes, lambda value: quantities.gigabytes(_giga(value))),
            "Count": figure_cell(row.count, quantities.count),
            "Mean time": figure_cell(row.mean_seconds, quantities.seconds),
            "Bus GB/s": figure_cell(row.bus_bytes_per_second, lambda value: quantities.rate(_giga(value))),
        }
        for row in shown.collectives[:MOST_PARTS]
    ]
    more = _not_shown(len(shown.collectives) - MOST_PARTS, "collectives")
    return table_of("collectives", f"Collectives of {finding.path}", rows, words=("Collective", "Type"), note=more)


def _giga(value: float | None) -> float | None:
    return None if value is None else value / GB


def compare_profiles(one: Profile, other: Profile) -> list[dict[str, Any]]:
    """Return two profiles side by side: the parts of the wall time, then every category of kernels that either has.

    Times are in seconds, shares of the total time or of all kernels; `ratio` is other / one: below 1 the other spends
    less time.
    """
    ours, others, unknown = one.parts(), other.parts(), (None, None)
    columns = ("name", "one_seconds", "one_share", "other_seconds", "other_share")
    pairs = ((name, *ours.get(name, unknown), *others.get(name, unknown)) for name in ours | others)
    return [
        {**dict(zip(columns, pair, strict=True)), "ratio": ratio(pair[3], pair[1])}
        for pair in pairs
        if pair[1] is not None or pair[3] is not None
    ]
