"""Spellings of model names: one table that every reader, option and comparison uses.

NeMo and MLPerf write llama31_8b, Primus llama3.1_8B, Hugging Face meta-llama/Meta-Llama-3.1-8B, Megatron-Bridge
llama3_8b, torchtitan "llama3 8B", LLaMA-Factory Llama-3.1-8B-Instruct. All of them are `llama` here. Llama 3 and 3.1 of
8B have one shape, and so have an instruction-tuned model and its base.
"""

from __future__ import annotations

import re

_SEPARATOR = r"[-_. :/]?"
_POINT = r"[-_. p]?"  # 3.1, 3_1, 3p1, 31
_SIZE_ENDS = r"(?![A-Za-z0-9])"
_WORD_BEGINS = r"(?<![A-Za-z0-9])(?:meta[-_ ]?)?"

KNOWN: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (name, re.compile(_WORD_BEGINS + pattern + _SIZE_ENDS, re.IGNORECASE))
    for name, pattern in (
        ("llama", rf"llama{_SEPARATOR}(?:v?3(?:{_POINT}1)?)?{_SEPARATOR}(?:config)?{_SEPARATOR}8b"),
        ("qwen", rf"qwen{_SEPARATOR}2{_POINT}5{_SEPARATOR}(?:config)?{_SEPARATOR}7b"),
        ("mistral", rf"mistral{_SEPARATOR}(?:v?0{_POINT}[123])?{_SEPARATOR}(?:config)?{_SEPARATOR}7b"),
    )
)
"""The models that this tool trains → every spelling with version and size. Qwen 2 has a 7B too, so its version counts;
no other Llama than 3 and 3.1 has 8B."""

_SIZED = re.compile(
    r"(?<!distill[-_ ])" + _WORD_BEGINS + r"(?:llama|qwen|mistral|mixtral|ministral|gemma|gpt|phi|deepseek|falcon|mpt|"
    r"opt|pythia|bloom|olmo)"
    r"(?:[-_. ]?(?:v|moe|coder|math|small|large|nemo|llm|neox|config)?\d{0,3}(?:[._p]\d{1,2})?){0,3}[-_. :]?"
    r"(?:\d{1,3}x)?\d{1,4}(?:[._]\d{1,3})?b" + _SIZE_ENDS,
    re.IGNORECASE,
)
"""A model's name with a size, known or not."""

_PARTS = re.compile(
    r"(?:meta-?)?(?P<family>[a-z]+)-?v?(?P<major>\d)?(?:[-.p]?(?P<minor>\d)(?=-))?-?(?P<size>(?:\d{1,3}x)?\d{1,4}(?:\.\d{1,3})?b)"
    r"(?:-(?:hf|base|instruct|chat))?(?P<rest>(?:-.*)?)"
)
"""The parts of another model's name, so that llama31_70b and Meta-Llama-3.1-70B agree."""

NOT_SOFTWARE = r"(?![-_. ]?(?:factory|cpp|recipes|cookbook|stack|index|adapter|agent|inference|finetune)(?![A-Za-z]))"
"""After a family: LLaMA-Factory, llama.cpp, llama-recipes, qwen-agent and mistral-finetune name no model."""
_FAMILIES = ("llama", "qwen", "mistral")
_FAMILY = re.compile(
    r"(?<![a-z0-9])(?:(?P<llama>llama)(?:-?v?3[-.p]?1?)?|(?P<qwen>qwen)(?:-?2[-.p]?5)?|(?P<mistral>mistral))"
    r"(?![a-z0-9]|-?\d*\.\d)" + NOT_SOFTWARE,
    re.IGNORECASE,
)
_CLASS = re.compile(
    r"(?<![A-Za-z0-9])(?:(?P<llama>Llama3?)|(?P<qwen>Qwen2(?:_5)?)|(?P<mistral>Mistral))"
    r"(?:ForCausalLM|Tokenizer(?:Fast)?|Config|Model|DecoderLayer)(?![A-Za-z0-9])"
)
"""A class of transformers or a tokenizer of Megatron; models of other names and sizes have the same classes."""
_PATH = re.compile(r"(?<![\w.~/-])[\w.~-]{0,200}/[\w./-]{1,200}")
_NO_NAME = re.compile(
    r"(?:[0-9a-f]{7,64}|snapshots|main|master|latest|final|original|hf|base|weights|tokenizer(?:\.\w+)?"
    r"|(?:checkpoint|step|iter|epoch|global_step)[-_=]?\d+)",
    re.IGNORECASE,
)
"""Parts of a path that say nothing about the model: hashes, checkpoints, Hugging Face's cache."""
_DECORATION = re.compile(
    r"\.ya?ml$|[-_ ](?:(?:bf16|fp16|fp32|tf32|fp8|fp4|mxfp\d|nvfp4|pre_?train(?:ing)?|post_?train(?:ing)?|sft"
    r"|tests?|bench(?:mark)?|run\d*|config|\d{8}|\d{4}-\d{2}-\d{2})(?![A-Za-z0-9]).*|train(?:ing)?)$",
    re.IGNORECASE,
)
_ANOTHER = re.compile(r"distill|(?<![a-z])moe(?![a-z])|\d{1,4}[-_]?experts?", re.IGNORECASE)
"""Words in the name of another model that contains a known name: a distilled student or a mixture of experts."""


def known_model(spelled: str) -> str | None:
    """Return the project's name of one of its own models, however it is spelled; None for any other.

    Of a path, the last part that is a name counts.

    >>> known_model("meta-llama/Meta-Llama-3.1-8B"), known_model("qwen25_7b_test_fp8"), known_model("llama3.1_70B")
    ('llama', 'qwen', None)
    """
    if not (parts := _name_parts(spelled)):
        return None
    last = parts[-1]
    if re.fullmatch(r"\d+(?:\.\d+)?b", last, re.IGNORECASE) and len(parts) > 1:  # llama3/8B
        last = f"{parts[-2]}-{last}"
    bare = undecorated(last).lower()
    if bare in _FAMILIES:
        return bare
    if _ANOTHER.search(last):
        return None
    return next((name for name, pattern in KNOWN if pattern.search(last)), None)


def resolve(spelled: str) -> str:
    """Return the project's name where the spelling is one of a known model, else the spelling itself."""
    return known_model(spelled) or spelled


def key(name: str) -> str:
    """Return a key that two spellings of one model share, for pairing results. The model need not be known.

    >>> key("Llama-3.1-8B-Instruct") == key("llama31_8b"), key("Meta-Llama-3.1-70B") == key("llama31_70b")
    (True, True)
    """
    if own := known_model(name):
        return own
    plain = re.sub(r"[_\s]+", "-", name.lower())
    last = "/".join(_name_parts(plain)[-1:])
    if not (match := _PARTS.fullmatch(undecorated(last))):
        return plain
    version = ".".join(filter(None, (match["major"], match["minor"])))
    return f"{match['family']}{version}-{match['size']}{match['rest']}"


def undecorated(name: str) -> str:
    """Return a name without the parts that describe the run: precision, phase, test, date.

    >>> undecorated("llama3.1_70B-BF16-pretrain.yaml"), undecorated("llama2_70b_lora")
    ('llama3.1_70B', 'llama2_70b_lora')
    """
    return _DECORATION.sub("", name)


def sized(text: str) -> set[str]:
    """Return the models that a text names with version and size, as keys: `llama`, or the `key` of another model.

    >>> sorted(sized("--tokenizer-model meta-llama/Llama-3.1-8B --teacher Qwen2.5-72B"))
    ['llama', 'qwen2.5-72b']
    """
    return {key(mention) for mention in mentions(text)}


def mentions(text: str) -> list[str]:
    """Return every spelling with version and size in a text, in its order."""
    return [match[0] for match in _SIZED.finditer(text)]


def families(text: str) -> set[str]:
    """Return the models that a text names without a size, by families whose version, if any, is the known model's.

    >>> sorted(families("training_llama.log")), sorted(families("llama2.log")), sorted(families("qwen25_run.log"))
    (['llama'], [], ['qwen'])
    """
    return {str(match.lastgroup) for match in _FAMILY.finditer(text.replace("_", "-"))}


def labels(text: str) -> dict[str, str]:
    """Return the models that a text may mean by a class or the end of a path: name → spelling. Their size is unknown.

    >>> labels("architectures: LlamaForCausalLM"), labels("--load /ckpt/mistral --lib /opt/llama.cpp")
    ({'llama': 'LlamaForCausalLM'}, {'mistral': '/ckpt/mistral'})
    """
    found = {str(match.lastgroup): match[0] for match in _CLASS.finditer(text)}
    paths = {model: path for path in _PATH.findall(text) if (model := known_model(path))}
    return {**paths, **found}


def _name_parts(spelled: str) -> list[str]:
    parts = [part for part in re.split(r"[/\\]", spelled.strip().strip("'\"")) if part]
    while len(parts) > 1 and _NO_NAME.fullmatch(parts[-1]):
        parts.pop()
    return parts
