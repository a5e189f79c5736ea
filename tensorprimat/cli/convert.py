"""`tprimat convert`, `convert_checkpoint.py`: convert a Hugging Face checkpoint to a NeMo checkpoint."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import Annotated

from tensorprimat.cli import known_values as known
from tensorprimat.cli.shared_options import switch, takes


def command(
    model: Annotated[str, takes("MODEL", "Model: llama, qwen or mistral.", offers=known.models)],
    source: Annotated[str, takes("SOURCE", "hf://ORGANISATION/NAME, or a folder.")],
    output: Annotated[Path, takes("DIR", "Folder for the NeMo checkpoint.")],
    overwrite: Annotated[bool, switch("--overwrite", "Replace an existing checkpoint.")] = False,
    dry_run: Annotated[bool, switch("--dry-run", "Print the required disk and memory; convert nothing.")] = False,
) -> int:
    """Convert a Hugging Face checkpoint of one of the three models to a NeMo checkpoint.

    The required disk space and memory are printed first; a disk with too little space is refused. NeMo's own importer
    converts on the CPU. It needs Transformer Engine, so run the command in NVIDIA's NeMo image. The output folder is
    written completely or not at all.

    \b
    Examples:
      python3 convert_checkpoint.py --model llama --source hf://meta-llama/Llama-3.1-8B --output checkpoints/llama
      python3 convert_checkpoint.py --model qwen --source ./Qwen2.5-7B --output checkpoints/qwen --dry-run

    \b
    Exit codes:
      0  converted
      1  the conversion failed
      2  a flag or the source is wrong, or NeMo or Transformer Engine is not installed
    """
    from tensorprimat.cli.options import refuse_file
    from tensorprimat.core.quantities import size
    from tensorprimat.engines.launchers import refuse_ranks
    from tensorprimat.engines.nemo import conversion

    refuse_ranks("a conversion")
    refuse_file("--output", output, "a NeMo checkpoint is a folder")
    conversion.check_output(output, overwrite=overwrite)
    needed = conversion.needs(model, source)
    download = f"{size(needed.download_bytes)} to download, " if needed.download_bytes else ""
    print(
        f"This needs at least {download}{size(needed.output_bytes)} of disk in {output} and "
        f"{size(needed.memory_bytes)} of memory",
        file=sys.stderr,
    )
    for warning in conversion.check_room(needed, output):
        print(f"Warning: {warning}", file=sys.stderr)
    if dry_run:
        print("Dry run: nothing was converted", file=sys.stderr)
        return 0
    with contextlib.redirect_stdout(sys.stderr):  # stdout is for the folder alone
        made = conversion.convert_checkpoint(model, source, output, overwrite=overwrite)
    print(made)
    return 0
