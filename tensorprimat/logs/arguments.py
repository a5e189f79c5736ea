"""Settings and the shape of a model by the names of arguments, wherever a framework prints or logs them.

data/arguments.toml has the names. A name whose values differ states nothing: it is printed for an evaluation, a second
model or another training too. A shape counts only if a configuration of transformers states all of it, or if it has
the number of parameters that the log states.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice, product
from math import prod
from typing import Any

from pydantic import ValidationError

from tensorprimat.core.errors import UsageError
from tensorprimat.core.result import ModelShape
from tensorprimat.core.settings import BY_NAME
from tensorprimat.facts import data_rows
from tensorprimat.logs import fields
from tensorprimat.logs.format import Reading
from tensorprimat.models import huggingface, presets
from tensorprimat.models.shapes import of_name

_Names = dict[str, tuple[str, Mapping[str, Any] | None]]


def _names(section: str) -> _Names:
    """Return name of an argument → the field that it states, and the meanings of its words."""
    rows = data_rows.read_data("arguments")[section].items()
    entries = ((field, entry) for field, names in rows for entry in names)
    pairs = ((field, (entry, None) if isinstance(entry, str) else (entry[0], entry[1])) for field, entry in entries)
    return {name: (field, words) for field, (name, words) in pairs}


_CONFIG, _SHAPE = _names("config"), _names("shape")
_PHRASES = data_rows.read_data("arguments")["phrases"]
_MOST_CANDIDATES = 32  # shapes of which one must have the stated parameters
_LEAST_MODEL, _LARGEST_MODEL = 1e5, 5e13  # parameters
_SAME_COUNT = 2e-3  # of the parameters; biases and the weights of norms are less
_POSITIONS = ("max_position_embeddings", "block_size", "max_seq_len")
"""Arguments that may be the number of trained position embeddings."""
_TIED = ("tie_word_embeddings", "tie_embeddings", "logits_via_embedding", "weight_tying")
_UNKNOWN_COST = ("n_expert", "num_experts", "num_local_experts", "moe_num_experts", "sliding_window_size")
"""Arguments of models whose cost these numbers do not state, unless they are 0 or 1."""
_WIDTH_OF_MLP = ("expansion_ratio", "mlp_ratio")
_FUSED_MLP = ("mlp_hidden_size",)
"""OLMo's width of the MLP, and its ratio, may count gate and value together."""
_VOCABULARIES = [name for name, one in _SHAPE.items() if one[0] == "vocab_size"]
"""Arguments for the size of the vocabulary, padded ones first."""
_COUNTS = ("n_params", "num_params", "num_parameters", "parameter_count", "model/num_parameters")

ARGUMENTS = (
    *_CONFIG,
    *_SHAPE,
    *_POSITIONS,
    *_TIED,
    *_UNKNOWN_COST,
    *_WIDTH_OF_MLP,
    *_FUSED_MLP,
    *_COUNTS,
    "model_type",
)

_LONGEST_LINE, _MOST_LINES = 2**14, 20_000
_PAIR = re.compile(
    r"""(?<![\w./-])["']?(?P<name>[A-Za-z_]\w{0,40}(?: [a-z]\w{0,20}){0,3})["']?"""
    r"""(?: {0,40}[=:]| (?P<dots>\.{3,60})) {0,2}"""
    r"""(?:["'](?P<quoted>[^"'\n]{1,100})["']|(?P<plain>\d{1,3}(?:,\d{3})+|[\w.+/-]{1,100})"""
    r"""(?![\w./-]|,\d| \d| ?[*/=:]))"""
)
_SECTION = re.compile(
    r"""['"]?\b(?P<name>[A-Za-z_]\w{0,40})['"]?(?:: ?|=)[A-Za-z_.]{0,60}[{(]|(?P<opens>[{(\[])|(?P<closes>[})\]])"""
    r"""|(?P<off>['"]?\benabled?['"]?[:=] ?[Ff]alse\b)|'[^'\n]{0,200}'|"[^"\n]{0,200}\""""
)
_OTHER_WORK = re.compile(
    r"(?:rollout|generation|generator|inference|vllm|sglang|server|ref|reference|critic|reward|teacher|draft|vision|visual|audio"
    r"|val|valid|validation|eval|evaluation|test|quantization)"
    r"(?:_(?:cfg|config|args|kwargs|params|model|policy|worker|engine|ds|dataset))?"
)
"""Names of sections that state the settings of other work than the training of the model."""
_LEFT_OUT = re.compile(rf"\b{_OTHER_WORK.pattern}['\"]?(?:: ?|=)[A-Za-z_.]{{0,60}}[{{(]|enabled?['\"]?[:=] ?[Ff]alse")
_YAML_SECTION = re.compile(r" *(?P<name>[A-Za-z_]\w{0,40}):\s*$")
_YAML_OFF = re.compile(r" *enabled?: [Ff]alse\s*$")
_OPTIMIZER = re.compile(r"\b(?:torch|torchao|bitsandbytes)\.optim\.(\w{1,40})$")
_OPTIMIZER_NAME = re.compile(r"((?:decoupled_|fused_?|distributed_fused_)?(?:adamw?|sgd|lion|muon))", re.IGNORECASE)
_OPTIMIZERS = re.compile(r"adam|sgd|lion|muon|adafactor|adagrad|lamb|shampoo|soap|sophia|nadam|prodigy")
_PRECISION = re.compile(  # Levanter prints <class 'jax.numpy.bfloat16'>
    r"(?:^|(?<=[a-z][_.]))(bf16|fp16|fp8|fp32|tf32|bfloat16|float16|float32|(?<![_.])(?:32|16))(?:$|-mixed|-true|'>)"
)
_PRECISIONS = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32", "32": "fp32", "16": "fp16"}
_PARAMETERS = re.compile(
    r"(?:\b(?:[Tt]otal (?:number of )?|[Mm]odel )param(?:eter)?s|(?<!Local )\b[Nn]umber (?:of )?parameters|\bmodel has"
    r"|\bshared model params|\bNetwork Parameters|\bModel size(?=: [\d,]{1,20} total parameters)"
    r"|\bBuilding transformer with(?= [\d,]{1,20} total params)"
    rf"|\b(?:{'|'.join(_COUNTS)}))['\"]?(?: {{0,20}}[:=] ?| )"
    r"(?P<count>\d{1,3}(?:,\d{3})+|\d{1,15}(?:\.\d{1,9})?)"
    r" ?(?P<unit>[KMBGT](?![a-z])|[Mm]illion|[Bb]illion)?(?![\w.,'\u2019]?\d| \d| ?[*x])"
)
_SUMMARY = re.compile(  # Lightning's and ms-swift's
    r"(?:^|\s)(?P<count>\d{1,7}(?:\.\d{1,4})?) ?(?P<unit>[KMBT])\s+(?:Total params$|Params \()"
)
_TRAINABLE = re.compile(r"(?<!of )\b[Tt]rainable param(?:eter)?s ?[:=] ?(\d{1,3}(?:,\d{3})+|\d{5,15})\b")
_UNITS = {"K": 1e3, "M": 1e6, "B": 1e9, "G": 1e9, "T": 1e12}
_CONFIG_OPENS = re.compile(r"\b[A-Z]\w{1,40}Config \{$")  # a configuration of transformers, as JSON
_LONGEST_CONFIG = 400  # lines


def pairs_in(lines: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield name and value of each argument that lines state.

    >>> list(pairs_in(["world_size: 8, seq_len = 2048", "max_steps=5*8", "- Max steps   : 9,000"]))
    [('world_size', '8'), ('seq_len', '2048'), ('max_steps', '9000')]
    """
    for line in _of_training(lines):
        for text, name, *value in _PHRASES:
            if text in line:
                yield name, value[0] if value else re.split(r"[^\w.+-]", line.partition(text)[2].lstrip(": "))[0]
        for match in _PAIR.finditer(line) if ":" in line or "=" in line or " ..." in line else ():
            name = match["name"]
            if match["dots"] and line[: match.start()].strip():  # of DeepSpeed, whose world_size counts replicas
                continue
            last = name.rpartition(" ")[2]  # "Config param emb_dim: 4096" names emb_dim
            name = last if "_" in last else name.replace(" ", "_")
            if name != "lr" or match[0][0] in "\"'" or _leads_to(line, match.start()):
                yield name.lower(), match["quoted"] or match["plain"].replace(",", "")


def _leads_to(line: str, start: int) -> bool:
    """Return True if `lr` at a place of its line is an argument of the training, not of a part in a sentence."""
    return line[max(start - 9, 0) : start].rstrip()[-1:] in ("", "|", "-") or "Namespace(" in line[:200]


def _of_training(lines: Iterable[str]) -> list[str]:
    """Return lines without comments and without sections of other work than training or of what is not enabled.

    >>> list(pairs_in(["{'rollout': {'seq_len': 9}, 'lr': 1, 'fp8_cfg': {'enabled': False, 'fp8': 'e4m3'}}"]))
    [('lr', '1')]
    """
    kept = [
        "" if line.lstrip()[:1] == "#" or "LLM engine" in line else line[:_LONGEST_LINE].partition(" # ")[0]
        for line in islice(lines, _MOST_LINES)
    ]
    for number, line in enumerate(kept):
        match = _YAML_SECTION.match(line)
        if match and _OTHER_WORK.fullmatch(match["name"]):
            _drop_below(kept, number)
        elif _YAML_OFF.match(line):
            above = range(number - 1, max(number - _LONGEST_CONFIG, 0) - 1, -1)
            parent = next((one for one in above if kept[one].strip() and _blanks(kept[one]) < _blanks(line)), None)
            if parent is not None and _YAML_SECTION.match(kept[parent]):
                _drop_below(kept, parent)
    text = "\n".join(kept)
    return _without_sections(text).split("\n") if _LEFT_OUT.search(text) else kept


def _drop_below(lines: list[str], section: int) -> None:
    """Remove the text of the lines of a section of YAML."""
    for number in range(section + 1, len(lines)):
        if lines[number].strip() and _blanks(lines[number]) <= _blanks(lines[section]):
            return
        lines[number] = ""


def _blanks(line: str) -> int:
    return len(line) - len(line.lstrip())


def _without_sections(text: str) -> str:
    """Return a text without the dictionaries and records of other work or of what is not enabled; lines stay."""
    spans: list[tuple[int, int]] = []
    sections: list[tuple[int, str, bool]] = []  # where each open one starts, its bracket, and whether it is left out
    for match in _SECTION.finditer(text):
        bracket = match[0][-1]
        if match["name"] or match["opens"]:
            is_left_out = _OTHER_WORK.fullmatch(match["name"] or "") is not None
            sections.append((match.start(), {"{": "}", "(": ")"}.get(bracket, "]"), is_left_out))
        elif match["off"] and sections:
            sections[-1] = (*sections[-1][:2], True)
        elif match["closes"]:
            depth = next((one for one in range(1, min(len(sections), 9) + 1) if sections[-one][1] == bracket), 0)
            if depth:  # else a bracket of a sentence
                start, _, is_left_out = sections[-depth]
                del sections[-depth:]
                while is_left_out and spans and spans[-1][0] > start:
                    spans.pop()
                spans += [(start, match.end())] * is_left_out
    if (cut_off := next((start for start, _, is_left_out in sections if is_left_out), None)) is not None:
        spans = [*(one for one in spans if one[0] < cut_off), (cut_off, len(text))]
    starts, ends = [0, *(end for _, end in spans)], [*(start for start, _ in spans), len(text)]
    lost = [*("\n" * text.count("\n", *span) for span in spans), ""]
    return "".join(text[start:end] + more for start, end, more in zip(starts, ends, lost, strict=True))


def settings_of(pairs: Iterable[tuple[str, str]]) -> dict[str, Any]:
    """Return field of TrainingConfig → value, of the arguments that state one value.

    >>> settings_of([("world_size", "8"), ("seed", "1"), ("seed", "2"), ("optimizer", "torch.optim.AdamW")])
    {'num_gpus': 8, 'optimizer': 'adamw'}
    >>> settings_of([("use_dynamic_bsz", "True")])
    {}
    >>> settings_of([("precision", "bf16-mixed"), ("fp8", "true")])  # the products; the rest of the model is in BF16
    {'precision': 'fp8'}
    >>> settings_of([("num_gpus", "8"), ("num_nodes", "2")])
    {'num_nodes': 2}
    """
    pairs = list(pairs)
    found: dict[str, set[Any]] = {}
    for name, text in pairs:
        if match := _OPTIMIZER.search(text) or (
            _OPTIMIZER_NAME.fullmatch(text) if name in ("name", "_name", "type") else None
        ):
            found.setdefault("optimizer", set()).add(match[1].lower())
        elif name in _CONFIG and (value := _value(*_CONFIG[name], text)) is not None:
            found.setdefault(_CONFIG[name][0], set()).add(value)
    if "fp8" in found.get("precision", ()):
        found["precision"] = {"fp8"}
    if found.get("num_nodes", {1}) != {1} and not any(name == "world_size" for name, _ in pairs):
        found.pop("num_gpus", None)  # num_gpus may be those of one node
    return {field: next(iter(values)) for field, values in found.items() if len(values) == 1 and "" not in values}


def _value(field: str, words: Mapping[str, Any] | None, text: str) -> Any:
    """Return what the text of an argument means for its field; None for a text that states nothing."""
    if words is not None:
        return words.get(text.lower())
    if field == "precision":
        match = _PRECISION.search(text.lower())
        return _PRECISIONS.get(match[1], match[1]) if match else None
    kind = BY_NAME[field].kind
    if kind == "count" or field == "seed":
        return int(text) if text.isdecimal() and len(text) <= 9 and (int(text) or field == "seed") else None
    if kind == "number":
        return fields.positive(text)
    word = text.rpartition(".")[2].lower()
    if field == "optimizer":
        return word if _OPTIMIZERS.search(word) else None
    return word if re.fullmatch(r"[a-z]\w+", word) and word not in ("none", "null", "true", "false", "auto") else None


def add_model(
    reading: Reading, lines: Sequence[str], pairs: Sequence[tuple[str, str]], named: Iterable[str] = ()
) -> None:
    """Add the parameters and the shape of the model that lines and arguments state, unless the reader found them.

    named: texts that may name the model; one of a known model counts if that has the stated parameters.
    """
    model, lines = reading.model, lines[:_MOST_LINES]
    found: dict[str, set[str]] = {}
    for name, text in pairs:
        found.setdefault(name, set()).add(text)
    of_counts = [line[:_LONGEST_LINE] for line in lines if "aram" in line or "model has" in line]
    counts = [_count(match) for line in of_counts for match in _PARAMETERS.finditer(line)]
    counts += [_count(match) for line in of_counts if (match := _SUMMARY.search(line))]
    counts += [(int(text), 0.5) for name in _COUNTS for text in found.get(name, ()) if text.isdecimal()]
    count, error = max((one for one in counts if _LEAST_MODEL < one[0] < _LARGEST_MODEL), default=(None, 0.0))
    if count and error < 1:
        model.setdefault("parameters", round(count))
        trained = {fields.whole(match[1]) for line in of_counts for match in _TRAINABLE.finditer(line)}
        if len(trained) == 1 and (one := trained.pop()) and one <= count:
            model.setdefault("trainable_parameters", one)
    if "shape" in model:
        return
    stated = model.get("parameters") or count
    shapes = {
        shape for config in (*_configs(lines), {} if lines else _untyped(pairs)) if (shape := _of_transformers(config))
    }
    adapters = model.get("trainable_parameters") or 0
    if not shapes and stated:
        plain = stated - (adapters if adapters < stated else 0)
        of_names = (of_name(text) for text in dict.fromkeys(named))
        shapes = _of_numbers(found, stated, error) or {
            one.shape for one in of_names if one and abs(presets.parameters(one.shape) / plain - 1) < _SAME_COUNT
        }
    if len(shapes) == 1:
        shape = shapes.pop()
        if not stated or abs(presets.parameters(shape) - stated) <= max(error, 10 * _SAME_COUNT * stated):
            model["shape"] = shape


def _count(match: re.Match[str]) -> tuple[float, float]:
    """Return a printed number of parameters and half a unit of its last digit."""
    text, unit = match["count"].replace(",", ""), _UNITS.get((match["unit"] or "")[:1].upper(), 1.0)
    return float(text) * unit, fields.half_digit(text) * unit


def _configs(lines: Sequence[str]) -> Iterator[Mapping[str, Any]]:
    """Yield the configurations that transformers prints as JSON, a line for each entry."""
    for number, line in enumerate(lines):
        if _CONFIG_OPENS.search(line.rstrip()):
            block = lines[number + 1 : number + _LONGEST_CONFIG]
            end = next((place for place, text in enumerate(block) if text.rstrip() == "}"), None)
            document = fields.json_in("{" + "\n".join(block[:end]) + "}") if end is not None else None
            if isinstance(document, dict):
                yield document


def _of_transformers(config: Mapping[str, Any]) -> ModelShape | None:
    """Return the shape that a configuration of transformers states; None for an architecture that is not known."""
    if str(config.get("model_type")) not in huggingface.kinds():
        return None
    try:
        return huggingface.of_config({name: _typed(value) for name, value in config.items()})
    except UsageError:
        return None


def _untyped(pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return the entries of a configuration that a tracker kept, without lists; none if a list may say which layers
    have a window.
    """
    config = dict(pairs)
    is_windowed = config.get("sliding_window", "").isdecimal() and config.get("use_sliding_window") not in (
        "False",
        "false",
    )
    return {} if is_windowed else config


def _typed(value: Any) -> Any:
    """Return a value of a configuration that a tracker may have kept as text."""
    if not isinstance(value, str):
        return value
    known = {"true": True, "false": False, "none": None, "null": None, "": None}
    return known[value.lower()] if value.lower() in known else int(value) if value.isdecimal() else value


def shape_of(**numbers: Any) -> ModelShape | None:
    """Return a shape, or None for numbers that no model has: digits of a damaged line."""
    try:
        return ModelShape(**numbers)
    except ValidationError:
        return None


def _of_numbers(found: Mapping[str, set[str]], stated: float, error: float) -> set[ModelShape]:
    """Return the shapes of the numbers that have the stated parameters: gated or not, with tied embeddings or not."""

    def numbers(names: Iterable[str]) -> list[int]:
        return sorted({int(text) for name in names for text in found.get(name, ()) if text.isdecimal() and int(text)})

    if any(number > 1 for number in numbers(_UNKNOWN_COST)):
        return set()
    known = {field: numbers(name for name, one in _SHAPE.items() if one[0] == field) for field in dict.fromkeys(
        field for field, _ in _SHAPE.values())}  # fmt: skip
    known["vocab_size"] = next(filter(None, (numbers((name,)) for name in _VOCABULARIES)), [])
    ratios, fused = numbers(_WIDTH_OF_MLP), numbers(_FUSED_MLP)
    tied = {text.lower() == "true" for name in _TIED for text in found.get(name, ())} or {False, True}
    needed = [known[name] for name in ("num_layers", "hidden_size", "num_attention_heads", "vocab_size")]
    if prod(map(len, needed)) not in range(1, _MOST_CANDIDATES) or not (known["ffn_hidden_size"] or ratios or fused):
        return set()
    near: dict[ModelShape, float] = {}
    for layers, width, heads, vocabulary in product(*needed):
        for ffn, groups, head, is_tied, is_gated, positions in islice(
            product(
                known["ffn_hidden_size"]
                or [one // parts for one in (*fused, *(ratio * width for ratio in ratios)) for parts in (1, 2)],
                known["num_key_value_heads"] or [heads],
                known["head_dim"] or [width // heads],
                tied,
                (False, True),
                (0, *numbers(_POSITIONS)),
            ),
            _MOST_CANDIDATES,
        ):
            shape = shape_of(
                num_layers=layers, hidden_size=width, ffn_hidden_size=ffn, num_attention_heads=heads,
                num_key_value_heads=groups, head_dim=head, vocab_size=vocabulary, gated_mlp=is_gated,
                tied_embeddings=is_tied,
            )  # fmt: skip
            if shape is None:
                continue
            off = abs(presets.parameters(shape) + positions * width - stated)
            if off <= max(error, _SAME_COUNT * stated):
                near[shape] = min(off, near.get(shape, off))
    least = min(near.values(), default=0.0)
    return {shape for shape, off in near.items() if off <= least or error >= 1}  # a rounded number leaves no choice
