"""Output of `tprimat extract`: result files, and a summary of each log."""

from __future__ import annotations

import sys
from collections.abc import Collection, Sequence
from pathlib import Path

from tensorprimat import logs
from tensorprimat.analysis.impossible import impossible
from tensorprimat.cli.options import named_file, refuse_output
from tensorprimat.cli.result_file import write_results
from tensorprimat.core.errors import UsageError
from tensorprimat.core.fact_values import Statement, check_sides, words_of_file
from tensorprimat.core.folders import DEFAULT_FOLDER
from tensorprimat.core.quantities import counted
from tensorprimat.core.result import Result
from tensorprimat.session import explain as explaining
from tensorprimat.session.extract import EACH, Extracted, extract_each, joined_logs
from tensorprimat.session.extract import follow_log as follow_log
from tensorprimat.session.log_names import expand
from tensorprimat.storage import store
from tensorprimat.system.safe_text import one_line


def show_formats() -> int:
    """Print the table of formats, with the text by which each is recognised."""
    width = max(len(format.name) for format in logs.FORMATS)
    for format in logs.FORMATS:
        print(f"{format.name:<{width}}  {format.reads}")
        print(f"{'':<{width}}    {format.looks_for}")
    return 0


def extract(
    named: Sequence[str],
    *,
    stated: Sequence[Statement],
    output: Path | None,
    format: str | None,
    segment: str | None,
    as_json: bool,
    explain: str | None,
    follow: bool,
) -> int:
    """Read the named logs, write results and return the exit code. Raises TensorPrimatError if none can be read."""
    if format is not None:
        logs.format_named(format)
    chosen = _segment(segment)
    writes = explain is None and (output is not None or not as_json)
    if writes:
        refuse_output("--output", output or DEFAULT_FOLDER)
    paths = expand(named)
    check_sides(stated, [words_of_file(Path(path)) for path in paths])
    if follow:
        if len(paths) != 1 or paths[0] == logs.STDIN:
            raise UsageError("--follow watches one file; name one log, which is not standard input")
        try:
            for line in follow_log(Path(paths[0]), stated, format):
                _say(line)
        except KeyboardInterrupt:
            print(file=sys.stderr)
    read: list[Extracted] = []
    refused = False
    for one in extract_each(paths, stated, format=format, segment=chosen):
        if isinstance(one, Extracted):
            read.append(one)
        else:
            _say(str(one))  # at once: reading the other logs may take long
            refused = True
    results, notes = (read, []) if chosen == EACH else joined_logs(read)
    for note in notes:
        _say(note)
    if explain is not None:
        for extracted in results:
            print(explaining.explain(extracted.result, explain, extracted.logs))
        return 2 if refused or not results else 0
    for extracted in results:
        _say_summary(extracted)
    if writes:
        _write_all(results, output or DEFAULT_FOLDER, quiet=as_json)
    if as_json:
        documents = [store.to_json(extracted.result).rstrip() for extracted in results]
        print(documents[0] if len(paths) == len(documents) == 1 else f"[{','.join(documents)}]")
    return 2 if refused or not results else 0


def _segment(text: str | None) -> int | None:
    """Return the training that --segment names: its number, EACH for all, None for the longest."""
    if text is None or text.strip().lower() == "all":
        return None if text is None else EACH
    if not text.strip().isdecimal() or int(text[:9]) < 1:
        raise UsageError(f"--segment {text}: must be the number of a training in the log, from 1, or all")
    return int(text[:9])


def _write_all(results: Sequence[Extracted], output: Path, *, quiet: bool) -> None:
    written: dict[Path, None] = {}
    if results and (file := named_file("--output", output)):
        written[write_results([extracted.result for extracted in results], file)] = None
    else:
        for extracted in results:
            written[_write(extracted.result, output, written)] = None
    for path in written:  # after all files are written, because a program that reads the list may close stdout
        print(path, file=sys.stderr if quiet else sys.stdout)


def _write(result: Result, output: Path, taken: Collection[Path]) -> Path:
    path = store.save(result, output, stamp=store.new_stamp(), written=taken)
    if not result.is_usable:
        ending = next((run.ended_by for run in result.runs if run.ended_by), "incomplete")
        _say(f"the run did not finish ({ending}): kept in history only; to compare it, name its file")
    return path


def _say_summary(extracted: Extracted) -> None:
    result = extracted.result
    of = f", training {number}" if (number := result.provenance.segment) else ""
    parts = [f"format {result.provenance.format or 'result'}", result.source, counted(len(result.steps), "row")]
    _say(f"{', '.join(extracted.logs)}{of}: {', '.join(filter(None, parts))}")
    for error in impossible(result):
        print(f"  error: {one_line(error)}", file=sys.stderr)
    contradicted = [notice for notice in result.remarks if notice.severity == "error"]
    for warning in contradicted:
        print(f"  warning: {one_line(warning)}", file=sys.stderr)
    for label, text in explaining.overview(result):
        print(f"  {label:<15}{text}", file=sys.stderr)
    for field in result.provenance.named_by_path:
        print(f"  {field + ':':<15}{one_line(result.provenance.assumed[field])} names it, not the log", file=sys.stderr)
    for notice in result.remarks:
        if notice.severity != "error":
            print(f"  {_SAID[notice.severity]}: {one_line(notice)}", file=sys.stderr)


_SAID = {"info": "note", "caution": "warning"}


def _say(text: str) -> None:
    print(one_line(text), file=sys.stderr, flush=True)
