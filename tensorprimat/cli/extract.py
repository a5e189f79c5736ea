"""`tprimat extract`, `./extract_primus_metrics.py`: turn a log into a result file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from tensorprimat.cli import known_values as known
from tensorprimat.cli import shared_options
from tensorprimat.cli.options import TO_FILE
from tensorprimat.cli.shared_options import argument, switch, takes
from tensorprimat.core.folders import DEFAULT_FOLDER


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
    named = [*(logs or []), *(log_file or [])]
    from tensorprimat.cli import extraction
    from tensorprimat.logs import metric_names

    if formats:
        return extraction.show_formats()
    stated = shared_options.statements(typed_facts, warmup_steps=warmup_steps)
    with metric_names.mapped(map or ()):
        return extraction.extract(
            named, stated=stated, output=output, format=format, segment=segment, as_json=json, explain=explain,
            follow=follow,
        )  # fmt: skip
