"""Text from logs and results cannot steer a terminal, a document, a page or a spreadsheet."""

import csv
import io
import unicodedata

from each import in_each
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from tensorprimat.system.safe_text import LONGEST_TEXT, csv_cell, markdown, one_line

HOSTILE = (
    "\x1b[31mred\x1b[0m",
    "\x1b]0;title\x07\x9b2J",
    "two\nlines\r\nand\u2028more",
    "abc\u202edcba",
    "zero\u200bwidth\ufeff",
    "lone \ud800 surrogate",
    "<script>alert(1)</script>",
    "| a | b |\n|---|---|",
    "# heading",
    "- point",
    "1. first",
    "[x](javascript:alert(1)) ![y](http://e/f.png)",
    "`code` *em* __strong__ ~~gone~~ &amp; &#60;",
    "<http://e.org> www.e.org http://e.org",
    "=HYPERLINK(1)",
    "@SUM(A1)",
    "-2+3",
)
ANY_TEXT = st.text(alphabet=st.characters(codec=None), max_size=80) | st.sampled_from(HOSTILE)


@given(ANY_TEXT)
def test_one_line_holds_nothing_but_visible_characters_and_spaces(text):
    line = one_line(text)
    assert line == " ".join(line.split())
    assert not [c for c in line if unicodedata.category(c)[0] == "C" or c in "\u2028\u2029"]


def test_one_line_leaves_ordinary_names_alone():
    for name in ("NVIDIA H100 80GB HBM3", "AMD Instinct MI250X/MI250", "Intel(R) Xeon(R) @ 2.00GHz", "华为 昇腾 910B"):
        assert one_line(name) == name


def test_one_line_cuts_very_long_text_and_marks_the_cut():
    assert len(one_line("x" * 10_000_000)) == LONGEST_TEXT
    assert one_line("x" * 10_000).endswith("…")


@given(ANY_TEXT)
def test_markdown_shows_the_text_and_nothing_else(text):
    """Rendered as a list item, the escaped text is plain text again: no element, no second block."""
    tokens = MarkdownIt("gfm-like", {"linkify": False}).parse(f"- {markdown(text)}")
    blocks = [token.type for token in tokens]
    shown = "".join(
        child.content for token in tokens for child in token.children or () if child.type.startswith("text")
    )
    assert set(blocks) <= {"bullet_list_open", "list_item_open", "paragraph_open", "inline", "paragraph_close",
                           "list_item_close", "bullet_list_close"}  # fmt: skip
    assert {child.type for token in tokens for child in token.children or ()} <= {"text", "text_special"}
    assert shown.replace("\u200b", "") == one_line(text)


@given(ANY_TEXT)
def test_markdown_keeps_a_table_row_one_cell_wide(text):
    table = f"| a |\n|---|\n| {markdown(text)} |\n"
    cells = [token for token in MarkdownIt("gfm-like", {"linkify": False}).parse(table) if token.type == "td_open"]
    assert len(cells) == 1


@in_each("mention", ["@someone", "#12", "see @team/x"])
def test_markdown_mentions_nobody_on_github(mention):
    assert "\\@" not in markdown(mention)
    assert "&#8203;" in markdown(mention)


@given(ANY_TEXT)
def test_a_csv_cell_is_never_a_formula(text):
    written = io.StringIO()
    csv.writer(written).writerow(["first", csv_cell(text)])
    (row,) = csv.reader(io.StringIO(written.getvalue()))
    assert row[1] == csv_cell(text)
    assert not row[1].startswith(("=", "+", "-", "@", "\t", "\r", "|", "%"))
