"""`tprimat extract`, `./extract_primus_metrics.py`: turn a log into a result file."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from tensorprimat.cli import known_values as known
from tensorprimat.cli import shared_options
from tensorprimat.cli.options import TO_FILE, named_file, refuse_output, write_results
from tensorprimat.cli.shared_options import argument, switch, takes
from tensorprimat.core.errors import UsageError
from tensorprimat.core.folders import DEFAULT_FOLDER
from tensorprimat.core.quantities import counted
from tensorprimat.system.safe_text import one_line

if TYPE_CHECKING:
    from tensorprimat.session.extract import Extracted


@shared_options.with_fact_options(after="log_file", options=shared_options.LOG_OPTIONS, side="[LOG=]")
def command(
    logs: Annotated[
        list[str] | None, argument("LOG", "Logs: files, folders, patterns, or - for standard input.")
    ] = None,
    log_file: Annotated[list[str] | None, takes("LOG", "The same as LOG; may be repeated.", "--log-file")] = None,
    warmup_steps: Annotated[
        int | None,
        takes("N", "Optimizer steps to leave out at the start.", *shared_options.WARMUP, show_default="detected"),
    ] = None,
    output: Annotated[
        Path | None, takes("DIR|FILE", f"Folder for results{TO_FILE}", show_default=str(DEFAULT_FOLDER))
    ] = None,
    segment: Annotated[
        str | None,
        takes(
            "N|all",
            "For a log with several trainings or runs: read number N, or write a result for each.",
            "--segment",
            "--segments",
            show_default="longest",
        ),
    ] = None,
    format: Annotated[
        str | None,
        takes(
            "F",
            "Read the log as this format (see --formats).",
            show_default="detected",
            offers=known.formats,
        ),
    ] = None,
    map: Annotated[
        list[str] | None,
        takes("FIELD=NAME", "Name of a column, key or tag, such as step_time=perf/step:ms (repeatable)."),
    ] = None,
    formats: Annotated[bool, switch("--formats", "List the formats.")] = False,
    json: Annotated[bool, switch("--json", "Print results as JSON; write files only with --output.")] = False,
    explain: Annotated[
        str | None, takes("FIELD", "Show formula, inputs and log lines of a figure or setting; write no file.")
    ] = None,
    follow: Annotated[bool, switch("--follow", "Show a running summary while the log grows.")] = False,
    **typed_facts: Any,
) -> int:
    """Read training logs of any known framework into result files that can be compared.

    Batch, sequence length, GPUs, parallel sizes and precision come from the log; flags add missing values, or override
    the log with a warning. If a log holds several trainings (tee -a, a requeued job, a resume), the one with the most
    steps is measured; trainings of equal settings that resume one another count as one. The others are listed. The
    result is written to DIR/benchmark_{cuda,rocm,cpu,unknown}_MODEL.json and kept in DIR/history; a summary goes to
    stderr, the name of the file to stdout.

    \b
    Examples:
      ./extract_primus_metrics.py --log-file primus_training_llama.log --model-name llama
      tprimat extract --log-file requeued.log --segments all
      zcat run.log.gz | tprimat extract - --model-name qwen --sequence-length 8192 --num-gpus 8 --json

    \b
    Exit codes:
      0  every log became a result
      2  a flag is wrong, or a log cannot be read or contains no step timing; the others are still written
    """
    from tensorprimat import logs as readers
    from tensorprimat.core.fact_values import check_sides, words_of_file
    from tensorprimat.logs import metric_names
    from tensorprimat.session import explain as explaining
    from tensorprimat.session.extract import EACH, Extracted, expand, extract_each, follow_log, joined_logs
    from tensorprimat.storage import store

    if formats:
        width = max(len(one.name) for one in readers.FORMATS)
        for one in readers.FORMATS:
            print(f"{one.name:<{width}}  {one.reads}\n{'':<{width}}    {one.looks_for}")
        return 0
    stated = shared_options.statements(typed_facts, warmup_steps=warmup_steps)
    with metric_names.mapped(map or ()):
        if format is not None:
            readers.format_named(format)
        chosen = _segment(segment)
        writes = explain is None and (output is not None or not json)
        if writes:
            refuse_output("--output", output or DEFAULT_FOLDER)
        if not logs and not log_file:
            raise UsageError("no log named; give --log-file LOG (or - for standard input)")
        paths = expand([*(logs or []), *(log_file or [])])
        check_sides(stated, [words_of_file(Path(path)) for path in paths])
        if follow:
            if len(paths) != 1 or paths[0] == readers.STDIN:
                raise UsageError("--follow watches one file; name one log, which is not standard input")
            try:
                for line in follow_log(Path(paths[0]), stated, format):
                    _say(line)
            except KeyboardInterrupt:
                print(file=sys.stderr)
        read: list[Extracted] = []
        refused = False
        for outcome in extract_each(paths, stated, format=format, segment=chosen):
            if isinstance(outcome, Extracted):
                read.append(outcome)
            else:
                _say(str(outcome))  # at once: reading the other logs may take long
                refused = True
        results, notes = (read, []) if chosen == EACH else joined_logs(read)
        for note in notes:
            _say(note)
        for extracted in results:
            if explain is not None:
                print(explaining.explain(extracted.result, explain, extracted.logs))
            else:
                say_summary(extracted)
    if writes:
        _write_all(results, output or DEFAULT_FOLDER, quiet=json)
    if json and explain is None:
        documents = [store.to_json(extracted.result).rstrip() for extracted in results]
        print(documents[0] if len(paths) == len(documents) == 1 else f"[{','.join(documents)}]")
    return 2 if refused or not results else 0


def _segment(text: str | None) -> int | None:
    """Return the training that --segment names: its number, EACH for all, None for the longest."""
    from tensorprimat.session.extract import EACH

    if text is None or text.strip().lower() == "all":
        return None if text is None else EACH
    if not text.strip().isdecimal() or int(text[:9]) < 1:
        raise UsageError(f"--segment {text}: must be the number of a training in the log, from 1, or all")
    return int(text[:9])


def _write_all(results: Sequence[Extracted], output: Path, *, quiet: bool) -> None:
    from tensorprimat.storage import store

    written: dict[Path, None] = {}
    if results and (file := named_file("--output", output)):
        written[write_results([extracted.result for extracted in results], file)] = None
    else:
        for result in (extracted.result for extracted in results):
            written[store.save(result, output, stamp=store.new_stamp(), written=written)] = None
            if not result.is_usable:
                ending = next((run.ended_by for run in result.runs if run.ended_by), "incomplete")
                _say(f"the run did not finish ({ending}): kept in history only; to compare it, name its file")
    for path in written:  # after all files are written, because a program that reads the list may close stdout
        print(path, file=sys.stderr if quiet else sys.stdout)


def say_summary(extracted: Extracted) -> None:
    """Print the facts, figures and warnings of a log on stderr."""
    from tensorprimat.analysis.impossible import impossible
    from tensorprimat.session import explain as explaining

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
