"""`tprimat analyze`, `./analyze_existing_logs.py`: survey folders of old training data."""

from __future__ import annotations

import os
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
        argument("FOLDER", "Folders, files or parts.", show_default="amd-logs nvi-logs benchmark_results output"),
    ] = None,
    json: Annotated[bool, switch("--json", "Print everything as JSON.")] = False,
    csv: Annotated[bool, switch("--csv", "Print one line per file as CSV.")] = False,
    save: Annotated[bool, switch("--save", "Write a result file for every log and event file.")] = False,
    output: Annotated[
        Path, takes("DIR|FILE", f"Folder for --save and --shard, or a file for the findings{TO_FILE}")
    ] = DEFAULT_FOLDER,
    shard: Annotated[
        str | None, takes("I/N", "Read every N-th file, from the I-th, and write that part to --output.")
    ] = None,
    merge: Annotated[bool, switch("--merge", "Show the survey whose parts, or folders of parts, are named.")] = False,
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

    Several machines share the work of one survey: each of N calls with --shard I/N writes part-I-of-N.jsonl to the
    folder --output, and --merge prints and writes what one call on one machine would. --shard slurm takes I and N from
    the Slurm job array of the task. --save is for --shard too, since the parts then contain the steps.

    \b
    Examples:
      ./analyze_existing_logs.py amd-logs nvi-logs
      tprimat analyze /data/old_runs --save --output output --csv > old_runs.csv
      tprimat analyze /data/old_runs --shard 3/8 --output parts
      tprimat analyze --merge parts --csv

    \b
    Exit codes:
      0  training data was found, or a part was written
      2  a folder or a part is missing, a flag is wrong, or nothing in the folders is training data
    """
    from functools import partial

    from tensorprimat.cli.live import with_progress
    from tensorprimat.core.errors import UsageError
    from tensorprimat.reports import survey as report
    from tensorprimat.session.shards import typed_shard
    from tensorprimat.session.survey import merged_survey, survey_folders, survey_part
    from tensorprimat.system import atomic
    from tensorprimat.system.safe_text import one_line

    stated = shared_options.statements(typed_facts)
    if json and csv:
        raise UsageError("--json and --csv: choose one")
    file = options.named_file("--output", output)
    if file is not None and save:
        raise UsageError(f"--output {output}: --save writes several files; name a folder")
    if save or shard is not None:
        options.refuse_output("--output", output)
    if shard is not None:
        if others := [flag for flag, used in (("--merge", merge), ("--json", json), ("--csv", csv)) if used]:
            raise UsageError(f"--shard and {others[0]}: choose one; --merge shows what all parts contain")
        if file is not None:
            raise UsageError(f"--output {output}: --shard writes a part; name a folder")
        part = typed_shard(shard, os.environ)
        path = survey_part(folders or [], stated, shard=part, save=save, folder=output, watch=with_progress)
        print(f"wrote {path}", file=sys.stderr)
        return 0
    save_to = output if save else None
    if merge:
        if stated:
            raise UsageError(f"{stated[0].flag}: not with --merge, the parts are read; state it with --shard")
        if not folders:
            raise UsageError("--merge: name the parts, or their folder")
        survey = merged_survey(folders, save_to=save_to)
    else:
        watch = partial(with_progress, name=lambda finding: one_line(finding.path.name, longest=30))
        survey = survey_folders(folders or [], stated, save_to=save_to, watch=watch)
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
