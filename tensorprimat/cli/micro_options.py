"""Options and output that `tprimat passes`, `warmup` and `sweep` share."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

from tensorprimat.cli import known_values as known
from tensorprimat.cli.shared_options import Command, number_as_typed, typed_option, with_options

if TYPE_CHECKING:
    from tensorprimat.machine.platform import Machine
    from tensorprimat.reports.tables import Table
    from tensorprimat.storage.micro_result import CellSpec, MicroResult

_SIZES = "small, medium, large, xl, 2.7B; llama, qwen, mistral; llama-tiny …"
OWN_SHAPE = "A shape of your own; may be repeated."
_PASSES = "forward, forward-backward, train, or all of them."
AUTOCAST = "Mixed precision with fp32 weights (--autocast), or weights in --precision too (--pure)."
_DEVICE = "auto, cpu, cuda or cuda:N (cuda is also ROCm's name)."
_TOKENS = "Tokens: .npy of uint16 or int32, memory-mapped."
FP32_ON_A_CPU = "bf16 on a GPU, fp32 on a CPU"

SHAPE_OPTIONS = (
    typed_option("model_size", str | None, "NAMES", _SIZES, offers=known.model_sizes, listed=True),
    typed_option("d_model", int | None, "N", "Width of the model."),
    typed_option("d_ff", int | None, "N", "Width of the MLP.", show_default="4 × --d-model"),
    typed_option("num_layers", int | None, "N", "Layers.", show_default="12"),
    typed_option("num_heads", int | None, "N", "Attention heads.", show_default="12"),
    typed_option("vocab_size", int | None, "N", "Vocabulary.", show_default="10000, or that of --model-size"),
    typed_option("shape", list[str] | None, "NAME=D_MODEL/D_FF/LAYERS/HEADS", OWN_SHAPE),
    typed_option("label", str | None, "NAME", "Name of the shape in the column model_size."),
)
WORK_OPTIONS = (
    typed_option(
        "pass_name",
        str,
        "NAMES",
        _PASSES,
        flag="--pass",
        default="all",
        offers=known.passes_and_all,
        listed=True,
    ),
    typed_option("warmup_steps", int, "N", "Steps before the measured ones.", default=5),
    typed_option(
        "measure_steps", int | None, "N", "Measured steps of all trials.", show_default="trials × steps per trial"
    ),
    typed_option("trials", int | None, "N", "Timed intervals.", show_default="10"),
    typed_option("steps_per_trial", int | None, "K", "Steps of each timed interval.", show_default="1"),
    typed_option(
        "precision",
        str | None,
        "NAMES",
        "fp32, tf32, bf16, fp16.",
        show_default=FP32_ON_A_CPU,
        offers=known.cell_precisions,
        listed=True,
    ),
    typed_option(
        "autocast", bool | None, None, AUTOCAST, flag="--autocast/--pure", show_default="pure; autocast for fp16"
    ),
    typed_option("compile", bool, None, "torch.compile the model.", flag="--compile", default=False),
    typed_option(
        "attention",
        str,
        "NAMES",
        "sdpa, eager or flash (package flash-attn).",
        default="sdpa",
        offers=known.attentions,
        listed=True,
    ),
    typed_option("data", Path | None, "FILE", _TOKENS, show_default="synthetic"),
    typed_option("seed", int, "N", "Seed of weights and tokens.", default=1234),
    typed_option("device", str, "DEVICE", _DEVICE, default="auto", offers=lambda: ("auto", "cpu", "cuda")),
    typed_option(
        "memory_limit",
        float | None,
        "GB",
        "Use no more memory than this.",
        show_default="all",
        parser=number_as_typed,
    ),
)
CELL_OPTIONS = {one.name: one for one in (*SHAPE_OPTIONS, *WORK_OPTIONS)}


def of_one_value(parameter: inspect.Parameter) -> inspect.Parameter:
    """Return an option with a metavar and a help that offer a single value, for a command that takes one cell."""
    kind, made = get_args(parameter.annotation)
    single = copy(made)
    single.metavar = "NAME" if made.metavar == "NAMES" else made.metavar
    single.help = made.help.removesuffix("; may be repeated.") + "." if made.help == OWN_SHAPE else made.help
    return parameter.replace(annotation=Annotated[kind, single])


def with_cell_options(
    *names: str, after: str | None, one_cell: bool = False, **defaults: Any
) -> Callable[[Command], Command]:
    """Return a decorator that gives a command these OPTIONS.

    one_cell: each option takes a single value. defaults: default values that differ in this command.
    """
    chosen = [of_one_value(CELL_OPTIONS[name]) if one_cell else CELL_OPTIONS[name] for name in names]
    return with_options([one.replace(default=defaults.get(one.name, one.default)) for one in chosen], after=after)


def requested_cells(typed: Mapping[str, Any], *, is_timed: bool = True, **own: Any) -> tuple[list[CellSpec], Machine]:
    """Return the cells that a command times, checked before the first of them runs for minutes, and the machine.

    typed: the command's shared options; own: its other ones. is_timed: False if it only estimates. Raises UsageError.
    """
    from tensorprimat.engines.launchers import refuse_ranks
    from tensorprimat.machine.platform import detect_platform
    from tensorprimat.measure import grid, passes

    refuse_ranks("a measurement of one device")
    values = {"shape": None, "memory_limit": None, "data": None, **typed, **own}
    data = values.pop("data")
    specs = grid.cells(
        grid.GridOptions(
            shapes=values.pop("shape") or (),
            data=None if data is None else str(data),
            device=resolved_device(values.pop("device")),
            memory_limit_gb=values.pop("memory_limit"),
            **values,
        )
    )
    machine = detect_platform(cpu=specs[0].device == "cpu")
    for spec in specs:
        passes.check_cell(spec, machine)
    if is_timed:
        passes.check_cell_packages()
    return specs, machine


_LEFT_OUT_FIRST = (
    "Launch, ms", "Median, ms", "Parameters", "Model TFLOP/s", "Backward CV, %", "Optimizer, ms", "CV, %",
    "Peak memory", "Backward / forward", "Forward, ms", "Backward, ms", "Catalogue peak, TFLOP/s", "Typical, TFLOP/s",
)  # fmt: skip
"""Columns that a narrow terminal does without, one after another until the table fits; files have them."""


def resolved_device(device: str) -> str:
    """Return "cpu" or "cuda" for "auto", by the machine; any other device unchanged."""
    if device != "auto":
        return device
    from tensorprimat.machine.platform import detect_platform

    return "cpu" if detect_platform().platform == "cpu" else "cuda"


def print_table(content: Table) -> None:
    """Print a table on stdout, as Markdown unless stdout is a terminal: ready for a write-up."""
    from tensorprimat.reports import markdown

    if not sys.stdout.isatty():
        print(markdown.table(content))
        return
    from tensorprimat.reports import harmless
    from tensorprimat.reports.console import print_fitting

    console = harmless.console(highlight=False)
    print_fitting(content, _LEFT_OUT_FIRST, console, places="files")
    if content.note:
        console.print(content.note, style="dim", markup=False)


def print_message(text: str) -> None:
    """Print a message on stderr; stdout is for the table."""
    print(text, file=sys.stderr, flush=True)


def say_warnings(cells: Sequence[MicroResult], *, subject: str = "") -> None:
    """Print the advice on the measured cells. subject: beginning of the sentences that are printed."""
    from tensorprimat.reports.micro_tables import cell_warnings

    for sentence in cell_warnings(cells):
        if sentence.startswith(subject):
            print_message(f"note: {sentence}")


def output_place(output: Path) -> tuple[Path, Path | None]:
    """Return the folder for one JSON per cell, and the file that --output names, if it names one.

    With a file, the cells go to a folder of the same name without the suffix.
    """
    from tensorprimat.cli.options import named_file, writable_folder

    file = named_file("--output", output)
    return writable_folder("--output", output.with_suffix("") if file else output), file


def write_file(cells: Sequence[MicroResult], file: Path, *, heading: str, text: Sequence[str] = ()) -> Path:
    """Write the cells in the form that the ending names: a JSON array, a row per cell, or a table."""
    from tensorprimat.reports.micro_tables import render_csv
    from tensorprimat.storage import micro_result as cell_files
    from tensorprimat.system.atomic import write_atomically

    ending = file.suffix.lower()
    if ending == ".json":
        write_atomically(file, cell_files.to_json_array(cells))
    else:
        write_atomically(file, render_csv(cells) if ending == ".csv" else _document(cells, heading, text))
    return file


def _document(cells: Sequence[MicroResult], heading: str, text: Sequence[str]) -> str:
    """Return the cells as Markdown. text: sentences under the table."""
    from tensorprimat.reports import markdown
    from tensorprimat.reports.micro_tables import cell_warnings, cells_table

    notes = markdown.bullets(cell_warnings(cells))
    parts = [f"# {heading}", markdown.table(cells_table(cells)), " ".join(text), notes]
    return "\n\n".join(part for part in parts if part) + "\n"


def write_tables(
    cells: Sequence[MicroResult], folder: Path, stem: str, *, heading: str, text: Sequence[str] = (), file: Path | None
) -> list[Path]:
    """Write Markdown and CSV of the cells into a folder, and the file that the user names; return their paths.

    text: sentences under the table.
    """
    places = (folder / f"{stem}.md", folder / f"{stem}.csv", *([file] if file else []))
    return [write_file(cells, place, heading=heading, text=text) for place in places]
