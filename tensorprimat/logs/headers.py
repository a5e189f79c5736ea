"""Lines before the first row: the arguments that a framework prints, whatever they are, and torchrun's command.

Readers take the settings that they know. Two logs can still be of different trainings (another softmax, another
optimizer), and their other arguments tell. Only a block of arguments counts, since single lines `name: value` state
times and places too. Lines that count trainable parameters tell whether all train: LoRA and frozen layers are other
work. LitGPT counts exactly; Lightning's summary (NeMo prints it too) rounds, so that only a zero is exact.
"""

from __future__ import annotations

import ast
import json
import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby, islice, takewhile
from typing import Any

from tensorprimat.core.errors import InputError
from tensorprimat.core.settings import BY_NAME
from tensorprimat.core.steps import Steps
from tensorprimat.facts import devices as vendors
from tensorprimat.logs import arguments
from tensorprimat.logs.format import Reading
from tensorprimat.logs.paths import platform_in_path
from tensorprimat.logs.text import Log
from tensorprimat.models.names import known_model
from tensorprimat.system import regular

MODEL_ARGUMENTS = (
    *("model_name", "model_name_or_path", "pretrained_model_name_or_path", "model", "exp_name", "experiment_name"),
    *("base_model", "model_variant", "_component_", "tokenizer_model", "tokenizer_name_or_path", "_name_or_path"),
)
"""Arguments that may name the model, in the order in which they are believed; only a known model's name counts."""
DEVICE_ARGUMENTS = ("gpu", "gpu_type", "gpu_name", "gpu_model", "device_name", "platform", "hardware", "vendor")
"""Arguments that may name the vendor in one word; `device: cuda` does not, it is PyTorch's word on ROCm too."""
STATED_IN_COLUMNS = frozenset((*arguments.ARGUMENTS, *MODEL_ARGUMENTS, *DEVICE_ARGUMENTS))
"""Columns of a table that may state the same fact in every row."""
MOST_TEXTS = 10_000  # settings
LINE_OF_A_PROGRAM = re.compile(r"(?:import|from) [\w.]{1,40}(?: import .{1,200}| as \w{1,20})?$")
"""A line of a program, in which batch_size=8 * 2048 * 8 is no setting."""
_RULE = re.compile(r"={20,}")
_BESIDE = {
    re.compile(r"$|metrics\.csv$|events\.out\.tfevents\."): "hparams.yaml",  # Lightning's loggers
    re.compile(r"wandb-summary\.json$"): "config.yaml",
    re.compile(r"trainer_state\.json$"): "config.json",
    re.compile(r"logging\.jsonl$"): "args.json",  # ms-swift
}
"""Name of a log ("" for a folder) → the file of settings in its folder."""
_LARGEST_BESIDE = 2**20  # bytes
_LONGEST_NAME = 200  # characters of a model's name

_FEWEST = 8  # lines of a style that other lines have, too, in a row make a block
_OWN_STYLES = 2  # that only arguments have
_MOST_LINES = 20_000  # before the first row
_LONGEST = 60  # characters of a value
_NAME = r"[a-z_][\w.\-]{1,60}"  # capitals are variables of the environment
_STYLES = (
    re.compile(
        rf"({_NAME}) \.{{3,}} (?!\[(?:NO|YES|OKAY|FAIL)\])(\S.*)"
    ),  # Megatron, DeepSpeed; not its list of extensions
    re.compile(rf"(?:.{{0,80}}?\b)?Config param ({_NAME}): (\S.*)"),  # MaxText
    re.compile(rf"({_NAME})=(\S.*)"),  # a dataclass, one field a line
    re.compile(rf"""["']?({_NAME})["']?\s?: ?(\S.*)"""),  # YAML, a dictionary
)
_DICTIONARY = re.compile(r"(?<!:::MLLOG )\{.*\}")  # a line of MLPerf states an event
_OF_A_RUN = re.compile(
    r"(?:^|[_.\-])(?:save|saving|load|paths?|dirs?|files?|name|logs?|logging|logger|tensorboard|wandb|seed|rank|port|"
    r"addr|address|host\w*|time|timeout|date|id|output|checkpoint\w*|ckpt|exit|intervals?|iters?|steps?|samples?|data\w*|"
    r"tokenizer|prefix|version|comet|mlflow|project|entity|url|key|user|job|uuid|pid|nodes?|profil\w*|eval\w*|valid\w*|"
    r"metrics?|description|folder|dump\w*|cache|vocab|merge|split|epochs?|world|run|experiment|exp)(?:$|[_.\-])",
    re.IGNORECASE,
)

_VERSION = re.compile(
    r"(?P<built>\b(?:compiled|built|wheel|requires?|needs)\b[^\n]{0,60}?)?"
    r"\b(?:Py[Tt]orch|[Tt]orch)(?: version)?(?:[:= ]+| \.{2,} )v?(?P<version>\d+\.\d+(?:[\w.+]*\w)?)"
)
"""A version of PyTorch, and words before it by which it is not that of the installed one, as ds_report prints both."""
_RELEASE = re.compile(r"\+(?:rocm(?P<rocm>\d{1,2}\.\d{1,2})|cu(?P<major>\d{2})(?P<minor>\d)\b)")
"""Release of ROCm or CUDA for which PyTorch was built."""
_COMMAND = re.compile(r"(?:\btorchrun|-m['\", ]{1,6}torch\.distributed\.(?:run|launch))(?=[\s'\",\\])")
_WORD = re.compile(r"[^\s'\"\[\]]+")
_COUNT = re.compile(r"\d{1,5}")
_WITHOUT_VALUE = ("standalone", "no_python", "run_path", "module", "m", "use_env", "virtual_local_rank")
"""Options of torchrun that no value follows."""
_TRAINED = re.compile(r"^Number of (?P<kind>trainable|non-trainable) parameters: (?P<count>\d[\d,]{0,20})$")  # LitGPT
_TRAINED_ROUNDED = re.compile(
    r"(?:^|\s)(?P<count>\d{1,4}(?:,\d{3}|\.\d{1,3})?)(?: (?P<unit>[KMBT]))?\s+(?P<kind>Trainable|Non-trainable) params$"
    r"|(?:^|\s)(?P<rich_kind>Trainable|Non-trainable) params: (?P<rich_count>\d{1,4}(?:,\d{3}|\.\d{1,3})?)"
    r"(?: (?P<rich_unit>[KMBT]))?$"
)
_TRAINED_MARK = "rainable param"


def lines_before_rows(log: Log, steps: Steps) -> list[str]:
    """Return the lines before the first row; none for a log that is not text."""
    lines = steps.column("line")
    if log.is_folder or log.is_binary or not len(lines) or lines[0] <= 0:
        return []
    before = takewhile(lambda line: line[0] < lines[0], log.lines())
    return [text for _, text in islice(before, _MOST_LINES)]


def printed(header: Sequence[str]) -> dict[str, str]:
    """Return the arguments in the lines before the first row, without places, names and lengths of a single run."""
    found = dict(_arguments(header))
    return {name: value for name, value in found.items() if not _OF_A_RUN.search(name) and _is_plain(value)}


def _is_plain(value: str) -> bool:
    return len(value) <= _LONGEST and "/" not in value and " at 0x" not in value


def _arguments(lines: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield name and value of every argument in a block or in a dictionary of one line."""
    for style, group in groupby(map(_styled, lines), key=lambda one: one[0]):
        if style == len(_STYLES):
            for _, text, _ in group:
                yield from _of_dictionary(text)
        elif len(block := list(group)) >= (1 if style < _OWN_STYLES else _FEWEST):
            yield from ((name, value) for _, name, value in block)


def _styled(text: str) -> tuple[int, str, str]:
    """Return the number of the style of a line with its name and value; for another line, one more and the text."""
    text = text.strip()
    for number, style in enumerate(_STYLES):
        if match := style.match(text):
            return number, match[1], match[2].rstrip(",")
    return len(_STYLES), text, ""


def _of_dictionary(text: str) -> Iterator[tuple[str, str]]:
    """Yield the values of a dictionary that a line holds as JSON or as Python prints it."""
    if (match := _DICTIONARY.search(text)) is None:
        return
    for read in (json.loads, ast.literal_eval):
        try:
            found = read(match[0])
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            continue
        if isinstance(found, dict) and len(flat := dict(_flat(found, ""))) >= _FEWEST:
            yield from flat.items()
        return


def _flat(values: Mapping[Any, Any], before: str) -> Iterator[tuple[str, str]]:
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{before}{name}.")
        else:
            yield f"{before}{name}", str(value)


def with_header(log: Log, reading: Reading, *, whole_sequences: bool, in_lines: bool = False) -> Reading:
    """Return a reading with the facts that lines before the first row state, each unless the reader found it.

    in_lines: without those of a file beside the log. whole_sequences: the arguments for the work of a step mean what
    their names say; frameworks pad, pack or count tokens, and their readers know.
    """
    lines, config = lines_before_rows(log, reading.steps), reading.training_config
    stated, beside = _outside_programs(lines), {} if in_lines else texts_beside(log)
    pairs = [*arguments.pairs_in(stated), *beside.items()]
    for name, value in arguments.settings_of(pairs).items():
        is_plain = whole_sequences or isinstance(value, str) or BY_NAME[name].weight != "work"
        if config.get(name) is None and is_plain:
            config[name] = value
    _describe(reading, stated, pairs)
    for line in (*lines, *beside.values()) if "device_name" not in reading.gpu_info else ():
        reading.note_device(line)
    if "pytorch_version" not in reading.gpu_info and (version := pytorch_version_in("\n".join(lines))):
        reading.gpu_info["pytorch_version"] = version
    if release := _RELEASE.search(reading.gpu_info.get("pytorch_version", "")):
        reading.gpu_info.setdefault("software_version", release["rocm"] or f"{release['major']}.{release['minor']}")
    nodes, of_node = processes_in(lines)
    if nodes:
        config.setdefault("num_nodes", nodes)
    if nodes and of_node and not config.get("num_gpus") and reading.platform != "cpu":
        config["num_gpus"] = nodes * of_node
        reading.assumed["num_gpus"] = "torchrun's command line in the log"
    return reading


def texts_beside(log: Log) -> dict[str, str]:
    """Return the settings that a trainer or a tracker writes into a file beside its log; a broken file says nothing."""
    texts: dict[str, str] = {}
    folder, name = (log.path, "") if log.is_folder else (log.path.parent, log.path.name)
    for file in () if log.called else (file for of_log, file in _BESIDE.items() if of_log.match(name)):
        import yaml

        try:
            text = regular.content(folder / file, most_bytes=_LARGEST_BESIDE).decode(errors="replace")
            document = regular.yaml_in(text)
        except (InputError, ValueError, yaml.YAMLError, RecursionError):
            continue
        if isinstance(document, dict):  # Weights & Biases keeps each setting as {value: …}
            plain = ((key, one.get("value", one) if isinstance(one, dict) else one) for key, one in document.items())
            add_texts(plain, texts)
    return texts


def _outside_programs(lines: list[str]) -> list[str]:
    """Return the lines below the program that a log contains, as modded-nanogpt writes its own above a line of `=`."""
    if not any(map(LINE_OF_A_PROGRAM.match, lines)):
        return lines
    return lines[max((number for number, line in enumerate(lines, 1) if _RULE.fullmatch(line)), default=len(lines)) :]


def pytorch_version_in(text: str) -> str | None:
    """Return the version of the installed PyTorch that lines state.

    >>> pytorch_version_in("PyTorch version 2.11.0a0+eb65b36914.nv26.2 available."), pytorch_version_in("torch 2 GPUs")
    ('2.11.0a0+eb65b36914.nv26.2', None)
    """
    return next((match["version"] for match in _VERSION.finditer(text) if match["built"] is None), None)


def processes_in(lines: Iterable[str]) -> tuple[int | None, int | None]:
    """Return nnodes and nproc_per_node of the last command; None without one, and where it is not a number.

    A command may go on over lines that end in a backslash, or be a list of words. One node is the default of torchrun.

    >>> processes_in(["torchrun --nnodes=2 \\\\", "  --nproc-per-node 8 train.py --nnodes 4"])
    (2, 8)
    >>> processes_in(["['torchrun', '--nproc_per_node', 'gpu', 'train.py']"])
    (1, None)
    """
    found: tuple[int | None, int | None] = None, None
    command = ""
    for line in lines:
        begins = None if command else _COMMAND.search(line)
        if command or begins:
            command += f" {line[begins.end() :] if begins else line}".rstrip()
            if not command.endswith("\\"):
                found, command = _processes(command) if "nproc" in command else found, ""
            command = command.removesuffix("\\")
    return found


def _processes(command: str) -> tuple[int | None, int | None]:
    options = dict(_options(filter(None, (word.rstrip(",") for word in _WORD.findall(command)))))
    nodes = "1" if "standalone" in options else options.get("nnodes", "1")
    known = (
        int(one) if _COUNT.fullmatch(one) and int(one) else None for one in (nodes, options.get("nproc_per_node", ""))
    )
    return next(known), next(known)


def _options(words: Iterator[str]) -> Iterator[tuple[str, str]]:
    """Yield the options of torchrun before its script, and their values; "" for those without one."""
    for word in words:
        if not word.startswith("-"):
            return
        name, has_value, value = word.lstrip("-").replace("-", "_").partition("=")
        if not has_value and name not in _WITHOUT_VALUE:
            value = next(words, "")
        yield ("nproc_per_node" if name.startswith("nproc") else name), value


def add_texts(items: Iterable[tuple[str, Any]], texts: dict[str, str]) -> None:
    """Add settings to texts by the last part of their names, sections included; of equal names the first counts."""
    waiting, seen = deque(items), set[int]()
    while waiting and len(texts) < MOST_TEXTS:
        name, value = waiting.popleft()
        if isinstance(value, dict):
            if id(value) not in seen:  # aliases of YAML may repeat a section without end
                seen.add(id(value))
                waiting.extend(value.items())
        elif isinstance(value, str | int | float):
            texts.setdefault(str(name).split(".")[-1], str(value))


def _describe(reading: Reading, lines: Sequence[str], pairs: Sequence[tuple[str, str]]) -> None:
    """Add the model that lines and arguments by name describe, unless the reader found it.

    A tokenizer in lines does not name it: other models train with the same one.
    """
    spelled = {
        text: name for wanted in MODEL_ARGUMENTS for name, text in pairs if name == wanted and len(text) < _LONGEST_NAME
    }
    arguments.add_model(reading, lines, pairs, spelled)
    of_model = (text for text, name in spelled.items() if not (lines and name.startswith("tokenizer")))
    if reading.model.get("name") is None and (model := next(filter(None, map(known_model, of_model)), None)):
        reading.model["name"] = model


def configure(reading: Reading, texts: Mapping[str, str], *, of: str) -> None:
    """Take settings, the model and the device from arguments by name. of: name of their source."""
    pairs = [(name, str(text)) for name, text in texts.items()]
    reading.training_config |= arguments.settings_of(pairs)
    _describe(reading, (), pairs)
    for name, text in texts.items():
        device = vendors.find_name(text)
        platform = vendors.platform_of(device) or (platform_in_path((text,)) if name in DEVICE_ARGUMENTS else None)
        if platform is not None:
            reading.platform = platform
            reading.assumed["platform"] = f"argument {name} of {of}"
            if device is not None:
                reading.gpu_info["device_name"] = device
            break


def note_counts(text: str, found: dict[str, Any]) -> None:
    """Note a line's counts in `found`, by "trainable" and "non-trainable": a number, or True for a rounded one."""
    if _TRAINED_MARK not in text:
        return
    line = text.strip()
    if exact := _TRAINED.match(line):
        found[exact["kind"]] = int(exact["count"].replace(",", ""))
    elif rounded := _TRAINED_ROUNDED.search(line):
        count_text = rounded["count"] or rounded["rich_count"]
        found[(rounded["kind"] or rounded["rich_kind"]).lower()] = float(count_text.replace(",", "")) != 0


def config_of_counts(found: dict[str, Any]) -> dict[str, str]:
    """Return the fields of TrainingConfig that follow: peft "none" where all train, "frozen" where some do not.

    For a model that is built after the summary, the counts are 0 and state nothing.
    """
    if not found.get("trainable") or "non-trainable" not in found:
        return {}
    return {"peft": "frozen" if found["non-trainable"] else "none"}


def counted_model(found: dict[str, Any]) -> dict[str, int]:
    """Return the fields of Model that exact counts give."""
    trained, frozen = found.get("trainable"), found.get("non-trainable")
    if isinstance(trained, bool) or isinstance(frozen, bool) or not trained or frozen is None:
        return {}
    return {"trainable_parameters": trained, "parameters": trained + frozen}
