"""Did two sides do the same work at all? A table of the fields that decide it, and a verdict with its sentence.

Three weights. `work`: another value is another problem, and no ratio means anything. `configuration`: the same problem
solved another way, as tuned comparisons do; the sentence names it. `context`: good to know, decides nothing.

    identical          every decisive field is stated by both and equal, and no configuration is known to differ
    like_for_like      same work and precision, no configuration known to differ, but some of it is not stated
    own_configuration  same work, own parallelism, micro batch, precision …; also where a field of the work is not
                       stated, because then nobody can call it like for like: the sentence says what is missing
    not_comparable     another model, shape, sequence length or global batch
"""

from __future__ import annotations

from collections.abc import Sequence

from tensorprimat.analysis.records import Difference, Fairness, FairnessVerdict
from tensorprimat.core.identity import FIELDS
from tensorprimat.core.records import Result

DECISIVE = (
    "model", "shape", "sequence_length", "global_batch_size", "precision", "num_gpus", "micro_batch_size",
    "tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size",
)  # fmt: skip


def judge(baseline: Result, candidate: Result) -> Fairness:
    """Whether a ratio of candidate to baseline may be drawn, what differs, and the sentence that says so."""
    differences = differences_between((baseline, candidate))
    unknown = tuple(
        field.label
        for field in FIELDS
        if field.key in DECISIVE
        and (field.weight == "work" or field.key == "precision")
        and None in (field.read(baseline), field.read(candidate))
    )
    verdict = _verdict((baseline, candidate), differences, unknown)
    return Fairness(
        verdict=verdict,
        differences=differences,
        unknown=unknown,
        sentence=_sentence(verdict, differences, unknown),
    )


def differences_between(results: Sequence[Result]) -> tuple[Difference, ...]:
    """Rows of the fairness table that differ; a value that only some state is listed too, except in the context."""
    differences = []
    for field in FIELDS:
        values = tuple(field.read(result) for result in results)
        stated = {value for value in values if value is not None}
        if len(stated) > 1 or (stated and None in values and field.weight != "context"):
            differences.append(Difference(field=field.key, label=field.label, values=values, weight=field.weight))
    return tuple(differences)


def _verdict(results: Sequence[Result], differences: Sequence[Difference], unknown: Sequence[str]) -> FairnessVerdict:
    if any(_is_other_work(difference) for difference in differences):
        return "not_comparable"
    if unknown or any(d.weight == "configuration" and None not in d.values for d in differences):
        return "own_configuration"
    every_value_stated = all(
        None not in (field.read(result) for result in results) for field in FIELDS if field.key in DECISIVE
    )
    return "identical" if every_value_stated else "like_for_like"


def _is_other_work(difference: Difference) -> bool:
    """A preset decides only through its shape, except that nothing but a tiny preset is ever tiny."""
    if difference.weight != "work":
        return False
    if difference.field == "preset":
        return ("tiny" in difference.values) and len(set(difference.values)) > 1
    return None not in difference.values


_OPENINGS: dict[FairnessVerdict, str] = {
    "identical": "Identical: same model, shape, sequence length, global batch, precision and parallelism on both sides",
    "like_for_like": "Like for like: same model, shape, sequence length, global batch and precision",
    "own_configuration": "Same work",
    "not_comparable": "Not comparable: the sides did not do the same work",
}


def _sentence(verdict: FairnessVerdict, differences: Sequence[Difference], unknown: Sequence[str]) -> str:
    """The verdict in words; values stand in the order baseline against candidate."""
    if verdict == "not_comparable":
        return f"{_OPENINGS[verdict]} ({_spell([d for d in differences if _is_other_work(d)])}).{_remedy(differences)}"
    configured = [d for d in differences if d.weight == "configuration" and None not in d.values]
    opening = _OPENINGS[verdict]
    if unknown:
        opening = f"Same work only if what is not stated on both sides agrees: {', '.join(unknown)}"
    return opening + (f"; own configuration: {_spell(configured)}" if configured else "") + "."


def _remedy(differences: Sequence[Difference]) -> str:
    """Return how to make the work equal where only its size differs, as between vendors' own configurations."""
    other = {difference.field for difference in differences if _is_other_work(difference)}
    if not other or not other <= {"sequence_length", "global_batch_size", "methodology"}:
        return ""
    return " Train both with ./benchmark.py --methodology agreed: same batch and sequence, each vendor's tuning."


def _spell(differences: Sequence[Difference]) -> str:
    return ", ".join(
        "another model shape"  # its numbers stand in the table
        if difference.field == "shape"
        else f"{difference.label} {' against '.join(value or 'not stated' for value in difference.values)}"
        for difference in differences
    )
