"""Rows of the nanoGPT family that state the time of a step: one spelling for each project."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tensorprimat.core.steps import Step
from tensorprimat.logs import fields
from tensorprimat.logs.fields import NUMBER

MILLISECOND = 1e-3


@dataclass(frozen=True, kw_only=True)
class Spelling:
    """The form in which one project writes a row."""

    project: str
    mark: str
    """Text in every row: a line without it is skipped in a twentieth of the time."""
    pattern: re.Pattern[str]
    holds_evaluation: bool = False
    """True if the time of the row contains an evaluation or checkpoint announced since the previous row."""


def _of_the_lecture(rate: str) -> Spelling:
    """Return the spelling of the lecture that led to build-nanogpt, and of the programs that follow it.

    rate: name of the tokens per second on the row.
    """
    return Spelling(
        project="build-nanogpt",
        mark=rate,
        pattern=re.compile(
            r"\b(?:[Ss]tep|[Ii]ter) ?:? *(?P<step>\d{1,15})(?:/(?P<last>\d{1,15}))?(?: ?\||,| with) ?(?:[Tt]rain[ _])?"
            rf"[Ll]oss ?: ?(?P<loss>{NUMBER}).{{0,200}}?[|,] ?(?:dt|[Tt]ime(?: taken)?): ?(?P<time>{NUMBER}) ?ms"
            rf"(?:,| ?\|) ?{rate}: ?(?P<tokens>{NUMBER})(?!\w)"
        ),
        holds_evaluation=True,
    )


ROW_SPELLINGS = (
    Spelling(
        project="nanoGPT",
        mark=", time ",
        pattern=re.compile(
            rf"\biter (?P<step>\d{{1,15}}): (?:train )?loss (?:(?P<loss>{NUMBER})|{NUMBER} [A-Za-z]{{1,12}})"
            rf"(?:, [^,|]{{1,40}}){{0,4}}?, time (?P<time>{NUMBER})ms"  # a loss with a unit is not in nats
        ),
        holds_evaluation=True,
    ),
    Spelling(
        project="llama2.c",
        mark="ms | mfu ",
        pattern=re.compile(
            rf"(?:^|\s)(?P<step>\d{{1,15}}) \| loss (?P<loss>{NUMBER})(?: \| [^|]{{1,40}}){{0,4}}?"
            rf" \| lr (?P<lr>{NUMBER}) \| (?P<time>{NUMBER})ms \| mfu +{NUMBER}%"
        ),
        holds_evaluation=True,
    ),
    Spelling(
        project="build-nanogpt",
        mark=" | dt: ",
        pattern=re.compile(
            rf"\bstep +(?P<step>\d{{1,15}}) \| loss: (?P<loss>{NUMBER}) \| lr:? (?P<lr>{NUMBER})"
            rf" \| norm: ?(?P<norm>{NUMBER}) \| dt: (?P<time>{NUMBER})ms \| tok/sec: (?P<tokens>{NUMBER})"
        ),
        holds_evaluation=True,
    ),
    Spelling(
        project="nanochat",
        mark=" dt: ",
        pattern=re.compile(
            rf"\bstep +(?P<step>\d{{1,15}})(?:/(?P<last>\d{{1,15}}))? \([\d.]+%\) \| loss: (?P<loss>{NUMBER}) \|"
            rf"(?: grad norm: (?P<norm>{NUMBER}) \|)?.{{0,60}}? dt: (?P<time>{NUMBER})ms"
            rf" \| tok/sec: (?P<tokens>{NUMBER})(?= \|)"
            rf"(?: \| (?:bf16_)?mfu: (?P<mfu>{NUMBER})(?= \|))?"
            rf"(?:.{{0,200}}? \| total time: (?P<total>{NUMBER})m)?"
        ),
    ),
    Spelling(
        project="llm.c",
        mark=" tok/s",
        pattern=re.compile(
            rf"\bstep +(?P<step>\d{{1,15}})/(?P<last>\d{{1,15}}) ?[|:] (?:train )?loss +(?P<loss>{NUMBER})"
            rf"(?: \([-+\w.]+z\))?(?: ?\| norm +(?P<norm>{NUMBER})(?: \([-+\w.]+z\))?)?(?: ?\| lr (?P<lr>{NUMBER}))?"
            rf"(?: ?\| \(?| \()(?P<time>{NUMBER}) ms(?: \| (?P<mfu>{NUMBER})% \w+ MFU)?(?:,| \|) {NUMBER} tok/s"
        ),
    ),
    Spelling(
        project="llm.c",
        mark=" (took ",
        pattern=re.compile(
            rf"\bstep (?P<step>\d{{1,15}}): train loss (?P<loss>{NUMBER}) \(took (?P<time>{NUMBER}) ms\)"
        ),
    ),
    *map(_of_the_lecture, ("tok/sec", "tokens/sec", "Tokens/sec", "tok/s", "Tok/s")),
)
_OF_ROW = tuple((name, re.compile(rf"[|,] ?{word}:? ?({NUMBER})")) for name, word in (("lr", "lr"), ("norm", "norm")))
"""Metrics of rows in any order."""


def row_parts(text: str) -> tuple[Spelling, re.Match[str]] | None:
    """Return the spelling and the parts of a row, or None for a line that is not a row."""
    for spelling in ROW_SPELLINGS:
        if spelling.mark in text and (match := spelling.pattern.search(text)):
            return spelling, match
    return None


def step(line: int, spelling: Spelling, match: re.Match[str], interrupted_by: str) -> Step:
    """Return the step that a row states. interrupted_by: validation or checkpoint announced since the row before."""
    groups = match.groupdict()
    if "norm" not in groups:
        groups |= {name: found[1] for name, pattern in _OF_ROW if (found := pattern.search(match.string))}
    return Step(
        index=int(groups["step"]),
        seconds=fields.printed_seconds(groups["time"], MILLISECOND),
        loss=fields.number(groups["loss"]),
        learning_rate=fields.positive(groups.get("lr")),
        gradient_norm=fields.number(groups.get("norm")),
        reported_tokens_per_second=fields.positive(groups.get("tokens")),
        reported_mfu=fields.positive(groups.get("mfu"), 0.01),
        interrupted_by=interrupted_by if spelling.holds_evaluation else "",
        line=line,
    )
