"""A remedy names only flags of the command that shows it, or names the other command that has the flag."""

import ast
import inspect
import re
from importlib import import_module
from pathlib import Path

import pytest
from each import in_each
from syntax import nodes
from test_stated_commands import bare

from tensorprimat.cli import COMMANDS, main
from tensorprimat.core.notices import notice_kinds
from tensorprimat.core.result import GpuInfo
from tensorprimat.machine.platform import Machine

PACKAGE = Path(__file__).parents[1] / "tensorprimat"
FLAG = re.compile(r"(?<![\w-])--[a-z][a-z0-9]*(?:-[a-z0-9]+)*")
OF_ANOTHER_COMMAND = re.compile(r"(?:\w+\.py|tprimat \w+|gcloud \w+)(?: [^;:]*)?$")
"""Text before a flag of another command than the one that prints the message: "benchmark.py --steps N"."""

LOGS = ("run", "extract", "analyze", "compare")
RESULTS = ("compare", "enhance", "metrics")
CELLS = ("passes", "warmup", "sweep")
TRAINING = ("run", "pretrain")
SHOWN_BY: dict[str, tuple[str, ...]] = {
    "analysis/aggregate.py": ("aggregate",),
    "analysis/collection.py": ("list",),
    "session/export.py": ("list",),
    "reports/collection.py": ("list",),
    "analysis/compare.py": ("compare",),
    "analysis/sides.py": ("compare",),
    "analysis/fairness.py": ("compare", "gate"),
    "analysis/rates.py": ("compare", "gate"),
    "analysis/gate.py": ("gate",),
    "analysis/history.py": ("history",),
    "analysis/impossible.py": (*RESULTS, "gate"),
    "analysis/inputs.py": (*RESULTS, "gate"),
    "analysis/memory.py": RESULTS,
    "analysis/metrics.py": ("enhance", "metrics"),
    "mlperf/library.py": ("mlperf",),
    "mlperf/projection.py": ("project",),
    "analysis/ratios.py": ("compare",),
    "analysis/economics.py": ("compare", "enhance", "metrics", "mlperf"),
    "reproduce/published.py": ("run",),
    "session/alternate.py": ("run",),
    "session/roofline.py": ("aggregate",),
    "session/runs.py": ("run",),
    "session/run_time.py": ("run",),
    "session/append.py": ("run",),
    "cli/benchmark.py": ("run",),
    "session/run_summary.py": ("run", "extract"),
    "cli/micro_options.py": CELLS,
    "session/explain.py": ("extract", "enhance"),
    "session/plan.py": ("run",),
    "session/primus_config.py": ("primus",),
    "session/shards.py": ("analyze",),
    "session/survey.py": ("analyze",),
    "cli/options.py": ("run", "extract"),
    "reports/notices.py": ("compare", "enhance"),
    "reports/survey.py": ("analyze",),
    "storage/micro_result.py": ("passes",),
    "audit/agreement.py": (*LOGS, *RESULTS),
    "audit/reported.py": (*LOGS, *RESULTS),
    "audit/checks.py": (*LOGS, *RESULTS),
    "facts/methodologies.py": ("run", "primus"),
    "core/errors.py": LOGS,
    "storage/legacy.py": (*RESULTS, "analyze", "extract"),
    "models/shapes.py": (*LOGS, *RESULTS, "sweep", "gate"),
    "core/spec.py": TRAINING,
    "core/user_facts.py": (*LOGS, *RESULTS, "gate"),
    "models/training_memory.py": ("run",),
    "models/megatron_memory.py": ("run",),
    "core/settings.py": ("run",),
    "engines/nemo/conversion.py": ("convert",),
    "engines/methodology.py": TRAINING,
    "engines/nemo/engine.py": TRAINING,
    "engines/nemo/recipe.py": TRAINING,
    "engines/prepare.py": TRAINING,
    "measure/advice.py": ("sweep",),
    "measure/grid.py": ("sweep",),
    "measure/passes.py": CELLS,
    "measure/sweep.py": ("sweep",),
    "measure/workload.py": ("passes", "sweep"),
    "measure/warmup.py": ("warmup",),
    "reports/aggregate.py": ("aggregate",),
    "reports/page.py": ("compare", "enhance"),
    "reports/sections.py": ("compare", "enhance"),
    "reports/formatting.py": ("compare",),
    "session/budget.py": ("run",),
    "session/extract.py": ("extract", "run"),
    "session/collection.py": ("history",),
    "mlperf/scaling.py": ("mlperf",),
    "cli/shared_options.py": ("run",),
    "session/preflight.py": ("preflight",),
    "measure/watch.py": ("preflight",),
    "bundles/archive.py": ("verify",),
    "bundles/proof.py": ("bundle",),
    "session/bisect.py": ("bisect",),
    "session/overhead.py": ("overhead",),
    "session/commits.py": ("bisect",),
    "reports/gate.py": ("gate",),
    "engines": ("run",),
    "logs": LOGS,
    "machine/platform.py": (*CELLS, "preflight"),
    "machine": ("run",),
    "traces": ("explain",),
    "reports/ledger.py": ("explain",),
    **{f"cli/{command}.py": (command,) for command in COMMANDS},
}
"""Module, or a room for the others of it → commands that show its messages."""
NO_REMEDY: dict[str, set[str]] = {
    "session/bisect.py": {  # of git
        *("--ancestry-path", "--first-parent", "--format", "--porcelain", "--quiet", "--reverse", "--untracked-files")
    },
    "session/shards.py": {"--array"},  # of sbatch
    "session/commits.py": {  # of git
        *("--detach", "--end-of-options", "--git-dir", "--quiet", "--show-prefix", "--verify")
    },
    "analysis/fairness.py": {"gate --strict"},  # gate is never lax
    "analysis/inputs.py": {"gate --price"},  # gate shows no prices
    "cli/micro_options.py": {"sweep --d-model"},  # help of an option that sweep lacks
    "engines/launchers.py": {"--job-name", "--num-nodes"},  # of srun; echo of what was typed
    "core/spec.py": {"--num-nodes"},  # echoes what was typed: run and pretrain spell it differently
    # echo: only a command that has the flag accepts it
    "core/settings.py": {"--data-fingerprint"},
    "core/errors.py": {"--debug"},  # of the program itself, before or behind every command
    "engines/cluster/nemo_run.py": {"--rm", "--help"},
    "engines/methodology.py": {"--preset"},  # pretrain has no preset but the real one, of which this says nothing
    "engines/nemo/engine.py": {"--preset", "--strategy", "--seed", "--engine", "--num-nodes", "--spec", "--result"},
    "engines/prepare.py": {
        # only where one of the first four was typed
        *("--compile", "--attention", "--master-weights", "--fp8-recipe", "--engine"),
        *("--activation-checkpointing", "--preset"),  # the same; the preset only where the torch engine trains
    },
    "engines/launch.py": {"--spec", "--result", "--wait"},
    "engines/bridge.py": {"--standalone", "--nproc-per-node", "--spec", "--rank", "--result", "--environment"},
    "engines/torch/engine.py": {"--spec", "--result", "--wait"},
    "engines/primus/checkout.py": {"--showproductname", "--asic", "--config"},
    "engines/cluster/submission.py": {"--cluster", "--folder", "--spec", "--result", "--archive"},
    "traces/readers.py": {"--type", "--output-format"},  # of nsys and rocprofv3
    "measure/grid.py": {"sweep --label"},  # echo
    "logs/metric_names.py": {"--map"},  # echo: only extract takes it
    "cli/shared_options.py": {"run --price", "run --warmup"},  # each option is for the commands that take it
    "measure/passes.py": {
        "warmup --data",
        "warmup --memory-limit",
    },  # echo: only a command that has the flag accepts it
    "measure/warmup.py": {"--warmup-steps"},  # advice for every other command, which all have it
    "logs": {"--format", "--segment"},  # echo: only a command that has the flag accepts it
}
"""Flags that a module only echoes, or hands to a child process; "gate --price": only where that command shows it."""
NOT_OURS = {
    "cli/__init__.py": "flags of the overview itself",
    "cli/earlier.py": "old flags that become today's",
    "engines/primus/engine.py": "flags of the child process and of Primus",
    "engines/entry.py": "flags of the child process",
    "engines/profiling.py": "flags of nsys and rocprof; --profile is run's own",
    "engines/cluster/slurm.py": "flags of Slurm's commands",
    "engines/cluster/scripts.py": "flags of Slurm's commands",
    "logs/deepspeed.py": "flags of the launchers whose logs are read",
    "logs/megatron/config.py": "flags of the launchers whose logs are read",
    "logs/prefixes.py": "flags of srun and mpirun",
    "logs/torchtitan.py": "flags of the launchers whose logs are read",
    "machine/gpu_processes.py": "flags of nvidia-smi and amd-smi",
    "measure/isolation.py": "flags of the child process",
}
"""Modules whose flags are of other programs → why."""


def accepted(command):
    """Return the long options of a command."""
    parameters = inspect.signature(import_module(f"tensorprimat.cli.{command}").command, eval_str=True).parameters
    flags = {"--help"}
    for name, parameter in parameters.items():
        if not hasattr(parameter.annotation, "__metadata__"):  # typer's own context
            continue
        option = parameter.annotation.__metadata__[0]
        declared = [option.default, *(getattr(option, "param_decls", None) or ())]
        spelled = {word for text in declared if isinstance(text, str) for word in text.split("/") if word[:2] == "--"}
        flags |= spelled or {f"--{name.replace('_', '-')}"}
    return flags


ACCEPTED = {command: accepted(command) for command in COMMANDS}


def _is_text(node):
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def texts(path):
    """Yield every string of a module that is no docstring; an f-string as one text, with {} for what is filled in."""
    every = nodes(path.read_text())
    inside = {id(part) for node in every if isinstance(node, ast.JoinedStr) for part in ast.walk(node)}
    documented = {id(node.value) for node in every if isinstance(node, ast.Expr)}
    for node in every:
        if isinstance(node, ast.FormattedValue):  # {' or --preset tiny' if … else ''}
            yield from (part.value for part in ast.walk(node.value) if _is_text(part))
        elif isinstance(node, ast.JoinedStr):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inside | documented:
            yield node.value


def remedies(text):
    """Return the flags of a text that are meant for the command that shows it."""
    return [match[0] for match in FLAG.finditer(text) if not OF_ANOTHER_COMMAND.search(text[: match.start()])]


MODULES = sorted(path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py"))


@in_each(MODULES)
def test_every_flag_in_a_message_is_one_of_the_commands_that_show_it(module):
    flags = {flag for text in texts(PACKAGE / module) for flag in remedies(text)}
    if module in NOT_OURS or not flags:
        return
    key = module if module in SHOWN_BY else module.partition("/")[0]
    assert key in SHOWN_BY, f"name the commands that show {sorted(flags)}"
    passed_over = NO_REMEDY.get(module, set()) | NO_REMEDY.get(key, set())
    meant = {f"{command} {flag}" for flag in flags - passed_over for command in SHOWN_BY[key]} - passed_over
    assert {one for one in meant if one.split()[1] not in ACCEPTED[one.split()[0]]} == set()


def test_every_flag_in_the_table_of_notices_is_one_of_the_commands_that_show_results():
    shown_by = ("run", "extract", "compare", "enhance")
    accepted = set().union(*(ACCEPTED[command] for command in shown_by))
    meant = {code: {*remedies(kind.text), *kind.flags} - {"--amd-smi"} for code, kind in notice_kinds().items()}
    assert {code: flags - accepted for code, flags in meant.items() if flags - accepted} == {}


@pytest.mark.parametrize("memory_gb", [0.1, 24.0])
def test_a_small_gpu_is_refused_by_pretrain_with_flags_that_pretrain_has(monkeypatch, capsys, memory_gb):
    machine = Machine(
        platform="nvd",
        gpu_info=GpuInfo(device_name="NVIDIA GeForce RTX 4090", device_count=1, total_memory_gb=memory_gb),
        host="desk",
    )
    monkeypatch.setattr("tensorprimat.machine.platform.detect_platform", lambda: machine)
    monkeypatch.setattr("tensorprimat.engines.prepare.check_engine", lambda *_: None)
    monkeypatch.setattr("tensorprimat.engines.nemo.engine.check", lambda *_: None)
    assert main(["pretrain", "--precision", "bf16", "--dry-run"]) == 2
    printed = capsys.readouterr().err
    assert "more --num-gpus" in printed
    assert set(remedies(printed)) - ACCEPTED["pretrain"] == set()


def test_a_remedy_that_names_another_command_is_meant_for_that_one():
    assert remedies("give --num-gpus; benchmark.py --steps N for longer runs") == ["--num-gpus"]
    assert remedies("tprimat extract --segment reads it alone, or give --gpu") == []


def said_by(capsys, command, path, tmp_path):
    output = {
        "compare": ["--output", tmp_path / "o", "--no-plot"],
        "enhance": ["--output", tmp_path / "o", "--no-plot"],
    }
    assert main([command, str(path), *map(str, output.get(command, []))]) == 0
    captured = capsys.readouterr()
    report = tmp_path / "o" / ("comparison_report.md" if command == "compare" else "enhanced_report.md")
    return captured.out + captured.err + (report.read_text() if report.is_file() else "")


@in_each("command", ["compare", "enhance", "metrics", "analyze"])
@in_each("facts", [{}, {"sequence_length": 2048, "global_batch_size": 8}, {"num_gpus": 8}])
def test_the_output_on_a_bare_result_names_only_the_commands_own_flags(tmp_path, capsys, command, facts):
    path = bare(tmp_path / "old.json", **facts)
    printed = " ".join(said_by(capsys, command, path, tmp_path).split())
    named = set(remedies(printed))
    assert named - ACCEPTED[command] == set()
    if command in ("enhance", "metrics"):
        assert "--gpu" in named


def test_a_price_that_compare_requests_can_be_given_to_it(tmp_path, capsys):
    path = bare(tmp_path / "old.json", sequence_length=2048, global_batch_size=8, num_gpus=8)
    flags = ["--output", str(tmp_path / "o.md"), "--gpu", "Unit 7"]
    assert main(["compare", str(path), *flags, "--price", "Unit 7=2.5", "--shape", "llama", "--precision", "bf16"]) == 0
    assert "--price Unit 7=2.5" in (tmp_path / "o.md").read_text()
    assert main(["compare", str(path), *flags, "--price", "free"]) == 2
    assert "--price free" in capsys.readouterr().err
