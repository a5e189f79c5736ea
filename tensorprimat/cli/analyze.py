"""`tprimat analyze`, `./analyze_existing_logs.py`: survey folders of old training data."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

from tensorprimat.cli import options, shared_options
from tensorprimat.cli.options import TO_FILE
from tensorprimat.cli.shared_options import argument, switch, takes
from tensorprimat.core.folders import DEFAULT_FOLDER
from tensorprimat.core.quantities import counted


@shared_options.with_fact_options(after="folders", side="[FILE=]")
def command(
    folders: Annotated[
        list[Path] | None,
        argument("FOLDER", "Folders or files.", show_default="amd-logs nvi-logs benchmark_results output"),
    ] = None,
    json: Annotated[bool, switch("--json", "Print everything as JSON.")] = False,
    csv: Annotated[bool, switch("--csv", "Print one line per file as CSV.")] = False,
    save: Annotated[bool, switch("--save", "Write a result file for every log and event file.")] = False,
    output: Annotated[
        Path, takes("DIR|FILE", f"Folder for --save, or a file for the findings{TO_FILE}")
    ] = DEFAULT_FOLDER,
    **typed_facts: Any,
) -> int:
    """Survey folders of old training data: text logs, TensorBoard events, TraceLens profiles (Excel),
    results.

    Files are recognised by content, not by name. The table shows format, model, GPU, steps and tokens/s per GPU; a
    model or precision taken from the path is marked with *. The column from_path of --json and --csv lists all settings
    taken from the path, the platform included. Unreadable files are listed and do not stop the command; files without
    training data are counted. Profiles have a separate table; for two profiles it also shows the ratio of each row.
    With --save each log becomes a result in DIR (and in DIR/history), for compare_results.py. A result of logs that are
    listed is not listed again.

    \b
    Examples:
      ./analyze_existing_logs.py amd-logs nvi-logs
      tprimat analyze /data/old_runs --save --output output --csv > old_runs.csv

    \b
    Exit codes:
      0  training data was found
      2  a folder is missing, a flag is wrong, or nothing in the folders is training data
    """
    from functools import partial

    from tensorprimat.cli.live import with_progress
    from tensorprimat.core.errors import UsageError
    from tensorprimat.reports import survey as report
    from tensorprimat.session.survey import survey_folders
    from tensorprimat.system import atomic
    from tensorprimat.system.safe_text import one_line

    stated = shared_options.statements(typed_facts)
    if json and csv:
        raise UsageError("--json and --csv: choose one")
    file = options.named_file("--output", output)
    if file is not None and save:
        raise UsageError(f"--output {output}: --save writes several files; name a folder")
    if save:
        options.refuse_output("--output", output)
    watch = partial(with_progress, name=lambda finding: one_line(finding.path.name, longest=30))
    survey = survey_folders(folders or [], stated, save_to=output if save else None, watch=watch)
    options.say_each(survey.notes)
    if file is not None:
        atomic.write_atomically(file, report.render_survey(survey, file.suffix.lower()))
        print(f"wrote {file}", file=sys.stderr)
    if json:
        print(report.render_json(survey))
    elif csv:
        sys.stdout.write(report.render_csv(survey.found))
    else:
        report.print_survey(survey.found, survey.foreign)
    for path in survey.saved:
        print(f"wrote {path}", file=sys.stderr)
    if not survey.is_usable:
        where, unusable = ", ".join(map(str, survey.places)), len(survey.found)
        files = f"{counted(survey.foreign, 'file')} without any, {unusable} that could not be used"
        print(f"no training data in {one_line(where)}: {files}", file=sys.stderr)
        return 2
    return 0
