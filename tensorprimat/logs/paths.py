"""Facts that the path of a log names and the log itself does not: model, precision and platform.

Each is recorded in `provenance.assumed` with the path, and shown as named by the path.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from tensorprimat.core.provenance import FROM_PATH
from tensorprimat.core.result import STACK_OF_PLATFORM, Platform, Result
from tensorprimat.logs import model_names
from tensorprimat.models import names

WITHOUT_DEVICE = ("tensorboard", "nemo")
"""Formats whose frameworks print no device; every other log is expected to name its platform itself."""

_ENDINGS = re.compile(r"(?:\.(?:log|txt|out|err|json|jsonl|csv|md|xlsx|gz|zst|xz|bz2|zip)){1,9}$", re.IGNORECASE)
_MODEL = re.compile(
    r"(?<![A-Za-z])(?<!distill[-_ ])(?:llama|qwen|mistral)(?:[-_ ]?v?[1-9](?:[._p]\d{1,2})?(?:vl)?(?![A-Za-z0-9]))?"
    + names.NOT_SOFTWARE,
    re.IGNORECASE,
)
"""A family and its version, except Mistral's v0.1 to v0.3, which are one shape. The name of a run may follow."""
_PRECISION = re.compile(r"(?<![A-Za-z0-9])(?:(?:mx|nv)?(fp8|fp4)|(bf16|fp16|fp32|tf32))(?![A-Za-z0-9])", re.IGNORECASE)
_PLATFORMS: tuple[tuple[Platform, re.Pattern[str]], ...] = (
    ("nvd", re.compile(r"nvi|nvd|nvidia|cuda|[dh]gx|[ahv]100|h[28]00|g?b[23]00|gh200|l40s?", re.IGNORECASE)),
    ("amd", re.compile(r"amd|rocm|instinct|mi(?:100|210|250|300|308|325|350|355)[acx]?", re.IGNORECASE)),
)
"""Whole words between punctuation: nvi-logs, run_mi300x_1."""
_LOG_FOLDER = re.compile(r"logs?|runs?|results?|events?|benchmarks?|outputs?|experiments?", re.IGNORECASE)
_WORDS = re.compile(r"[A-Za-z0-9]+")


def parts_of(path: str | Path) -> tuple[str, ...]:
    """Return the names in a path that may state facts: all of a relative path, only the end of an absolute one.

    Folders far above are homes and mounts: /home/amd is not a platform. The parent counts if its name is that of a
    folder of logs.
    """
    typed = Path(os.path.normpath(path))
    if not typed.is_absolute():
        return tuple(part for part in typed.parts if part != "..") or (typed.absolute().name,)
    parent = typed.parent.name
    holds_logs = any(_LOG_FOLDER.fullmatch(word) for word in _WORDS.findall(parent))
    return (parent, typed.name) if holds_logs else (typed.name,)


def with_path_facts(result: Result, parts: Sequence[str]) -> Result:
    """Return the result with facts from the parts of its path, where it does not state them itself."""
    origin = f"{FROM_PATH}{'/'.join(part for part in parts if part)}"
    assumed = dict(result.provenance.assumed)
    changes: dict[str, object] = {}
    if result.model.name is None and (model := model_in_path(parts)):
        changes["model"] = result.model.changed(name=model)
        assumed["model.name"] = origin
    config = result.training_config
    if config.precision is None and (precision := precision_in_path(parts)):
        changes["training_config"] = config.changed(precision=precision)
        assumed["precision"] = origin
    nameless = result.platform is None and result.provenance.format in WITHOUT_DEVICE
    if nameless and (platform := platform_in_path(parts)):
        changes["platform"] = platform
        assumed["platform"] = origin
        if result.gpu_info.software_stack is None:
            changes["gpu_info"] = result.gpu_info.changed(software_stack=STACK_OF_PLATFORM[platform])
    if not changes:
        return result
    return result.changed(**changes, provenance=result.provenance.changed(assumed=assumed))


def model_in_path(parts: Sequence[str]) -> str | None:
    """Return the model named by the innermost part of a path that names one.

    >>> model_in_path(("nvi-logs", "llama3_1_8b_pretrain_fp8", "log.txt")), model_in_path(("llama2_70b.log",))
    ('llama', 'llama2_70b')
    """
    for part in reversed([_ENDINGS.sub("", part) for part in parts]):
        if model := names.known_model(part):
            return model
        sized = [mention for mention in names.mentions(part) if _MODEL.match(mention)]
        if match := _MODEL.search(part):
            return model_names.model_name(sized[0] if sized else match[0])
    return None


def precision_in_path(parts: Sequence[str]) -> str | None:
    """Return the precision named by the innermost part of a path that names one."""
    for part in reversed(parts):
        if match := _PRECISION.search(part.replace("_", "-")):
            return (match[1] or match[2]).lower()
    return None


def platform_in_path(parts: Sequence[str]) -> Platform | None:
    """Return the platform named by the innermost part of a path that names one; None where one part names both.

    >>> [platform_in_path(path) for path in (("nvi-logs", "qwen25_7b_test_fp8"), ("mi300x_vs_h100",), ("amd3",))]
    ['nvd', None, None]
    """
    for part in reversed(parts):
        words = _WORDS.findall(part)
        if found := {platform for platform, names in _PLATFORMS if any(names.fullmatch(word) for word in words)}:
            return found.pop() if len(found) == 1 else None
    return None
