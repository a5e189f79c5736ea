"""The summary on the terminal, for 80 columns and more: main figures of each side, verdict level, verdict."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from dataclasses import replace

from rich import box
from rich.cells import cell_len, set_cell_size
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table as RichTable
from rich.text import Text

from tensorprimat.analysis.records import Comparison, Pair
from tensorprimat.reports import efficiency, forest, harmless, published, sections
from tensorprimat.reports.page import ModelPart, Page, PairPart, model_heading, no_pair_sentence, page_of
from tensorprimat.reports.sections import COMPARISON, Report
from tensorprimat.reports.tables import Column, Table, TableCell
from tensorprimat.system.safe_text import LONGEST_NOTE, middle_cut, one_line

STYLES = {
    "faster": "bold green",
    "slower": "bold red",
    "no_difference_shown": "bold",
    "too_few_runs": "bold yellow",
    "unsettled": "bold yellow",
    "not_comparable": "bold yellow",
}
_NOTICE_STYLES = {"info": "", "caution": "yellow", "error": "bold red"}
LOUD_LOSSES = ("diverge", "failed")  # warnings that change the meaning of a speed; the others are in the reports
NARROW = 100  # columns of a terminal below which figures take two lines
GIVE_WAY = ("tokens/s", sections.COST_TITLE)  # results that a narrow terminal leaves out, the first one first
NARROW_HEADING = 8  # characters of a line of a heading there
TOO_NARROW = 76  # below which a table's columns do not fit at all
INDENT = 2  # columns before everything that belongs to a model
NO_BREAK = "\N{NO-BREAK SPACE}"
GAP = 2  # columns between two columns of a table
MOST_LABEL_LINES = 4  # of a label in a table; longer ones are read more easily above a list
_MOST_WARNINGS = 5  # of a screen; the report has them all
MOST_PUBLISHED = 6  # rows of a screen
MOST_SIDE_COLUMNS = 3  # sides that each have a column next to a published result


def safe(content: str, style: str = "") -> Text:
    """Return untrusted text as rich text, without control codes; brackets are not read as markup."""
    return Text(one_line(content), style=style)


def paragraph(content: str, style: str = "", *, width: int, indent: int = 0, bullet: str = "") -> Text:
    """Return untrusted words in lines of so many columns; a path that is longer stays whole, to be copied."""
    lines = textwrap.wrap(
        bullet + one_line(content, longest=LONGEST_NOTE).replace(" %", f"{NO_BREAK}%"),
        max(20, width - indent),
        subsequent_indent=" " * len(bullet),
        break_long_words=False,
        break_on_hyphens=False,
    )
    text = "\n".join(" " * indent + line for line in lines).replace(NO_BREAK, " ")
    return Text(text, style=style, no_wrap=True, overflow="ignore")


def table(content: Table, *, narrow: bool = False) -> RichTable:
    """Return a table of any report for the terminal.

    narrow: "61.30 GB allocated" breaks before "allocated" and "10 × 10,752 to 11,520" before "to", headings break
    between words. A figure and its interval stay on one line.
    """
    rendered = RichTable(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    for column, title in zip(content.columns, _titles(content, narrow), strict=True):
        rendered.add_column(
            Text(title), justify="right" if column.numeric else "left", no_wrap=column.numeric, overflow="fold"
        )
    for row in _texts(content, narrow):
        rendered.add_row(*map(Text, row))
    return rendered


def _titles(content: Table, narrow: bool) -> list[str]:
    def folded(column: Column) -> str:
        title = one_line(column.title)
        if not (narrow and column.numeric):
            return title
        return textwrap.fill(title, NARROW_HEADING, break_long_words=False, break_on_hyphens=False)

    return [folded(column) for column in content.columns]


def _texts(content: Table, narrow: bool) -> list[list[str]]:
    def text(cell: TableCell, column: Column) -> str:
        line = one_line(cell.text)
        return _RANGE.sub(r"\1\n\2", _FIGURE.sub("\n", line)) if narrow and column.numeric else line

    return [[text(cell, column) for cell, column in zip(row, content.columns, strict=True)] for row in content.rows]


def fitting(content: Table, *smaller: Table, width: int) -> RenderableType:
    """Return the widest form of a table that fits into so many columns without a break inside a word or a figure.

    smaller: the table with shorter texts or fewer columns, in the order in which they are tried before a list.
    """
    for shown in (content, *smaller):
        for narrow in (False, True):
            if width < NARROW and not narrow:
                continue
            if width >= TOO_NARROW - INDENT and _least_width(shown, narrow) <= width:
                return table(shown, narrow=narrow)
    return table_as_lists(content)


def _least_width(content: Table, narrow: bool) -> int:
    """Return the columns that a table needs at least: the longest line of figures, the longest word of labels, and
    enough for labels of at most MOST_LABEL_LINES lines."""
    rows = [_titles(content, narrow), *_texts(content, narrow)]
    total = 0
    for place, column in enumerate(content.columns):
        pieces = [piece for row in rows for piece in (row[place].split("\n") if column.numeric else row[place].split())]
        longest = 0 if column.numeric else max(cell_len(row[place]) for row in rows)
        total += max(-(-longest // MOST_LABEL_LINES), *map(cell_len, pieces), 0) + GAP
    return total


_FIGURE = re.compile(r"(?<= GB) |(?<= W;) |(?<= GHz,) | (?=at \$)")  # "61.30 GB allocated" on two lines, power on three
_RANGE = re.compile(r"^([\d,]+ × [\d,]+) (to [\d,]+)$")  # "10 × 10,752 to 11,520", runs of unlike lengths, likewise


def table_as_lists(content: Table) -> RenderableType:
    """Return a table as one list of figures per row, for terminals too narrow for columns."""
    width = max(len(column.title) for column in content.columns) + 2
    parts: list[RenderableType] = []
    for row in content.rows:
        parts.append(safe(row[0].text, "bold"))
        for column, one in zip(content.columns[1:], row[1:], strict=True):
            parts.append(Padding(Text(f"{column.title:<{width}}{one_line(one.text)}"), (0, 0, 0, 2)))
    return Group(*parts)


def summary(
    comparison: Comparison, report: Report = COMPARISON, *, width: int, explain: bool = False
) -> RenderableType:
    """Return everything that the command prints about a comparison.

    width: columns of the terminal. explain: with formula and inputs of every metric.
    """
    page = page_of(comparison, report)
    parts: list[RenderableType] = [safe(f"Warning: {text}", "yellow") for text in page.above]
    parts += [*_errors(comparison, width), *_answer(page, width)]
    for model in page.models:
        parts += _of_model(model, width, alone=len(comparison.pairs) == 1, scaled=len(page.models) == 1)
        for content in model.tables if report.of_metrics else ():
            parts += _titled(content, width)
        for content in (one for _, tables in model.explanations if explain for one in tables):
            parts += _titled(content, width)
    if report.of_metrics:
        parts += [paragraph(page.convention, width=width), Text()]
    if page.notices:
        parts.append(Text("Warnings", style="bold"))
        parts += [
            paragraph(line.text, _NOTICE_STYLES[line.severity], width=width, indent=INDENT, bullet="• ")
            for line in page.notices[:_MOST_WARNINGS]
        ]
        if (more := len(page.notices) - _MOST_WARNINGS) > 0:
            parts.append(Padding(safe(f"… and {more} more in the report"), (0, 0, 0, 2)))
        parts.append(Text())
    parts += headlines(page, width) if report.of_metrics else []  # the first ones have scrolled away
    return Group(*parts)


def print_metrics(comparison: Comparison, *, explain: bool) -> None:
    """Print every metric of every side. explain: with its formula and inputs."""
    console = harmless.console(highlight=False)
    parts: list[RenderableType] = _errors(comparison, console.width)
    for side in comparison.sides:
        parts += [safe(model_heading([side]), "bold"), Text()]
        for content in efficiency.explanation(side) if explain else (efficiency.figures(side),):
            parts += _titled(content, console.width)
    console.print(Group(*parts), crop=False)


def _errors(comparison: Comparison, width: int) -> list[RenderableType]:
    return [paragraph(f"Error: {error}", "bold red", width=width) for error in comparison.errors]


def _titled(content: Table, width: int) -> list[RenderableType]:
    """Return a section with its title above and its remarks below; nothing for a table without rows."""
    if not content.rows:
        return []
    parts: list[RenderableType] = [safe(content.title, "bold"), fitting(content, width=width - INDENT)]
    parts += [safe(content.note, "dim")] if content.note else []
    remarks = [paragraph(remark, "dim", width=width, indent=INDENT, bullet="• ") for remark in content.remarks]
    return [*(Padding(part, (0, 0, 0, INDENT)) for part in parts), *remarks, Text()]


def _answer(page: Page, width: int) -> list[RenderableType]:
    """Return the first screen: the sentences that answer the comparison, and all ratios on one scale per rate."""
    parts = headlines(page, width)
    for scale in page.scales:
        parts += [Text(), Padding(_drawn(scale, width - INDENT), (0, 0, 0, INDENT))]
    return [*parts, Text()] if parts else []


def headlines(page: Page, width: int) -> list[RenderableType]:
    """Return the sentences that answer the comparison, and their limits."""
    mean, pairs = page.comparison.mean_ratio, page.comparison.pairs
    style = _style(pairs[0]) if len(pairs) == 1 else STYLES[mean.verdict] if mean is not None else "bold"
    parts: list[RenderableType] = [paragraph(f"{one.sentence}.", style, width=width) for one in page.answers]
    return [*parts, *([paragraph(page.limits, "dim", width=width)] if page.limits else [])]


def _drawn(scale: forest.Forest, width: int) -> RenderableType:
    """Return a scale as lines of text: label, ratio, interval and a strip with the ratio between its ends."""
    labels = max(min(LONGEST_LABEL, max(cell_len(one_line(mark.label)) for mark in scale.marks)), len("equal"))
    figures = max(len(mark.text) for mark in scale.marks)
    ends = max(len(mark.ends) for mark in scale.marks)
    strip = min(WIDEST_STRIP, width - labels - figures - ends - 3 * GAP)
    lines: list[RenderableType] = [safe(scale.title, "dim")]
    for mark in scale.marks:
        line = Text(
            set_cell_size(middle_cut(one_line(mark.label), labels), labels), style="bold" if mark.is_mean else ""
        )
        line.append(f"{'':{GAP}}{mark.text:>{figures}}{'':{GAP}}", style="bold")
        style = mark.level.style if mark.level is not None else ""
        if strip >= NARROWEST_STRIP:
            line.append(f"{mark.ends:<{ends}}{'':{GAP}}", style="dim")
            line.append(_strip(scale, mark, strip), style=style)
        else:
            line.append(mark.ends, style="dim")
        lines.append(line)
    return Group(*lines)


LONGEST_LABEL = 26  # characters of a label on a scale
WIDEST_STRIP, NARROWEST_STRIP = 48, 12  # columns


def _strip(scale: forest.Forest, mark: forest.ForestMark, width: int) -> str:
    """Return "┊  ├──●──┤": 1 (equal), the interval and the ratio."""

    def place(value: float) -> int:
        return round(scale.place(value) * (width - 1))

    cells = [" "] * width
    if mark.low is not None and mark.high is not None and place(mark.low) < place(mark.value) < place(mark.high):
        for position in range(place(mark.low), place(mark.high) + 1):
            cells[position] = "─"
        cells[place(mark.low)], cells[place(mark.high)] = "├", "┤"
    cells[place(1.0)] = "┊"
    cells[place(mark.value)] = "◆" if mark.is_mean else "○" if mark.verdict == "baseline" else "●"
    return "".join(cells)


def _of_model(model: ModelPart, width: int, *, alone: bool, scaled: bool) -> list[RenderableType]:
    """Return the verdicts and results of one model.

    alone: the page has one pair, so its headline is at the top; scaled: the scale at the top shows the ratios.
    """
    pairs, parts = model.pairs, []
    if len(pairs) == 1 and alone:
        parts += [*_pair(pairs[0], width, alone=True), Text()]
    parts += [safe(model.heading, "bold"), Text()]
    results = short = _slim(model.results)
    if any(column.title == "Device" for column in results.columns):
        short = _slim(sections.results(model.part.sides, short=True))
    smaller = [without_columns(short, *GIVE_WAY[:number]) for number in range(len(GIVE_WAY) + 1)]
    parts.append(Padding(fitting(results, *smaller, width=width - INDENT), (0, 0, 0, INDENT)))
    if results.note:
        parts.append(paragraph(results.note, "dim", width=width, indent=INDENT))
    if len(pairs) == 1 and not alone:
        parts += [Text(), *_pair(pairs[0], width, alone=False)]
    elif len(pairs) > 1:
        parts += [Text(), *_several(model.part.pairs, width, drawn=scaled)]
    elif not pairs:
        parts += [Text(), paragraph(no_pair_sentence(model.part.sides), "dim", width=width, indent=INDENT)]
    return [*parts, *_published(model.part, width), Text()]


def _published(of_model: Comparison, width: int) -> list[RenderableType]:
    """Return the nearest published results that a side can be compared with, and how many the library has."""
    rows = of_model.published
    every = len(rows) + sum(of_model.published_left_out.values())
    near = [row for row in rows if any(one.ratio is not None for one in row.against)][:MOST_PUBLISHED]
    if not rows:
        return []
    content = published.published_table(near, every - len(near))
    parts: list[RenderableType] = [Text(), safe(f"{content.title} ({len(near)} of {every} rows)", "bold")]
    if near:
        several = len(near[0].against) > MOST_SIDE_COLUMNS
        each = [
            column.title for column in content.columns if several and column.title.endswith(published.OVER_PUBLISHED)
        ]
        slim = without_columns(content, "Source", "What differs", "Sequence", "Global batch", *each)
        parts += [fitting(slim, width=width - INDENT), safe(content.note or "", "dim")]
    else:
        parts.append(safe("None can be compared; the written report gives the reasons.", "dim"))
    return [Padding(part, (0, 0, 0, 2)) for part in parts]


def without_columns(content: Table, *titles: str) -> Table:
    """Return a table without the columns of these titles."""
    keep = [position for position, column in enumerate(content.columns) if column.title not in titles]
    return replace(
        content,
        columns=tuple(content.columns[position] for position in keep),
        rows=tuple(tuple(row[position] for position in keep) for row in content.rows),
    )


UNBOUNDED = 10_000  # columns of a terminal on which every table fits


def print_fitting(content: Table, first: Sequence[str], screen: Console, *, places: str) -> None:
    """Print a table with the columns that fit the terminal and a line that names the others; else print a list.

    first: titles of the columns that are left out, one after another, until the table fits. places: where all are.
    """
    boundless = screen.options.update(width=UNBOUNDED)
    present = [title for title in first if title in (column.title for column in content.columns)]
    for count in range(len(present) + 1):
        shown = table(without_columns(content, *present[:count]))
        if screen.measure(shown, options=boundless).maximum <= screen.width:
            break
    else:
        screen.print(table_as_lists(content))
        return
    screen.print(shown)
    if left_out := present[:count]:
        names = ("; " if any("," in title for title in left_out) else ", ").join(left_out)
        screen.print(Text(f"A wider terminal and {places} also have: {names}.", style="dim"))


def _slim(results: Table) -> Table:
    """Return the results for a terminal: with one interval, that of the main figure."""
    step_time = [column.title for column in results.columns].index("Step time")

    def cell(position: int, content: TableCell) -> TableCell:
        return replace(content, text=content.text.split(" ±")[0]) if position == step_time else content

    return replace(
        results, rows=tuple(tuple(cell(position, one) for position, one in enumerate(row)) for row in results.rows)
    )


def _pair(one: PairPart, width: int, *, alone: bool) -> list[RenderableType]:
    """Return the level with the differences, then the headline, unless the top has it because the pair is `alone`."""
    pair, fairness = one.pair, one.pair.fairness
    sentences: list[tuple[str | None, str]] = [
        (fairness.sentence, "bold red" if fairness.errors else fairness.level.style)
    ]
    if not alone:
        finding_style = _style(pair) if fairness.level.comparable else ""
        sentences += [(f"{one.headline.finding}.", finding_style), (one.limits, "dim")]
    sentences.append((one.own_devices and f"{one.own_devices}.", ""))
    if pair.losses is not None and pair.losses.verdict in LOUD_LOSSES:
        sentences.append((pair.losses.sentence, "bold yellow"))
    sentences += [*((sentence, "") for sentence in one.money), (one.advice and f"{one.advice}.", "")]
    return [paragraph(sentence, style, width=width, indent=INDENT) for sentence, style in sentences if sentence]


def _style(pair: Pair) -> str:
    return STYLES[pair.ratio.verdict if pair.ratio is not None else "not_comparable"]


def _several(pairs: Sequence[Pair], width: int, *, drawn: bool) -> list[RenderableType]:
    """Return a table against each baseline, below the fairness of its candidates.

    drawn: the scale at the top shows every ratio with its interval already, so only the note below the table is left.
    """
    parts: list[RenderableType] = []
    for baseline in dict.fromkeys(pair.baseline.label for pair in pairs):
        of_baseline = [pair for pair in pairs if pair.baseline.label == baseline]
        parts.append(paragraph(f"Against {baseline}", "bold", width=width, indent=INDENT))
        for sentence in dict.fromkeys(pair.fairness.sentence for pair in of_baseline):
            whose = ", ".join(pair.candidate.label for pair in of_baseline if pair.fairness.sentence == sentence)
            parts.append(paragraph(f"{whose}: {sentence}", width=width, indent=INDENT))
        if any(pair.fairness.verdict != "not_comparable" for pair in of_baseline):
            content = sections.verdicts(of_baseline)
            shown = fitting(without_columns(content, "Model", "Baseline", "Level"), width=width - INDENT)
            parts += [] if drawn else [Text(), Padding(shown, (0, 0, 0, INDENT))]
            if note := sections.family_note(of_baseline) if drawn else content.note:
                parts.append(paragraph(note, "dim", width=width, indent=INDENT))
        parts.append(Text())
    return parts[:-1]


def print_summary(
    comparison: Comparison, console: Console | None = None, *, report: Report = COMPARISON, explain: bool = False
) -> None:
    """Print the summary; colour and width are the terminal's own, NO_COLOR is respected."""
    console = console or harmless.console(highlight=False)
    console.print(summary(comparison, report, width=console.width, explain=explain), crop=False)
