"""Where a log states a fact of its configuration: the lines that name it with its value.

Readers keep the line of every step, but not of what they find in argument dumps, YAML, banners and rows on their way;
who asks for one fact gets the lines that say it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice

from tensorprimat.logs.rows import NUMBER, number
from tensorprimat.logs.text import Log

SEARCHED_LINES = 10**6  # a configuration stands near the beginning
SHOWN_CHARACTERS = 100  # of a line, from a little before the name on
BETWEEN = r".{0,40}?"  # dots, quotes, colons between a name and its value

SPELLINGS = {
    "sequence_length": r"(?:seq|sequence|context)[-_ ]?len(?:gth)?(?: T)?|max_target_length|block_size",
    "global_batch_size": r"global[-_ ]?(?:train[-_ ]?)?batch[-_ ]?size|train_batch_size|total batch size",
    "micro_batch_size": r"micro[-_ ]?batch[-_ ]?size(?: B)?|per_device_train_batch_size|local_batch_size",
    "max_steps": r"train[-_]iters|max[-_]?steps|training[-_ ]steps|iteration +\d+/",
    "num_gpus": r"world[-_ ]?size|num[-_]?(?:gpus|devices|processes)|devices|Starting with|rank-\d+/",
    "num_nodes": r"n_?nodes|num[-_]?nodes|submission_platform",
    "learning_rate": r"\blr|learning[-_ ]?rate",
    "padded_vocabulary_size": r"padded[-_ ]vocab(?:[-_]size)?|new size",
    "recompute": r"recompute[-_]granularity",
    "parameters": r"num(?:ber of)?[-_ ]param(?:eter)?s|model size",
    "device_count": r"world[-_ ]?size|num[-_]?(?:gpus|devices)|devices",
    "total_memory_gb": r"memory",
}
"""Field of a record → how frameworks spell it, where that is not the field's own name."""


def stating(log: Log, field: str, value: object, most: int = 3) -> list[tuple[int, str]]:
    """(line, excerpt) of the first lines that name the field with this value; none for folders and binary files.

    A word (a device, a precision) is looked for by itself, since few logs give it the field's name.
    """
    return list(islice(_stating(log, field, value), most))


def _stating(log: Log, field: str, value: object) -> Iterator[tuple[int, str]]:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    name = SPELLINGS.get(field) or field.replace("_", "[-_ ]?")
    pattern = rf"(?:{name}){BETWEEN}(?<![\w.])(?P<value>{NUMBER})" if is_number else rf"\b{re.escape(str(value))}\b"
    expression = re.compile(pattern, re.IGNORECASE)
    if log.is_folder or log.is_binary:
        return
    for line, text in islice(log.bare_lines(), SEARCHED_LINES):
        match = expression.search(text)
        if match and (not is_number or number(match["value"]) == value):
            start = max(0, match.start() - SHOWN_CHARACTERS // 5)
            yield line, text[start : start + SHOWN_CHARACTERS].strip()
