"""Rules about messy text: the code, the evidence and the test that docs/project/text-rules.md names exist."""

import importlib
import re
from pathlib import Path

import tomllib

ROOT = Path(__file__).resolve().parents[1]
RULE = re.compile(
    r"- \*\*(?P<sees>.+)\*\*: (?P<does>.+)\n {4}- evidence: (?P<needs>.+)\n"
    r" {4}- code: `(?P<code>[\w.]+)`\n {4}- test: `(?P<file>\w+)\.(?P<test>\w+)`\n"
)
PAGE = (ROOT / "docs/project/text-rules.md").read_text("utf-8")
RULES = [match.groupdict() for match in RULE.finditer(PAGE)]
IN_PLACE = "in place of a repair"


def test_every_entry_of_the_lists_is_a_rule_of_its_own_code() -> None:
    assert PAGE.count("\n- ") == len(RULES) == len({rule["code"] for rule in RULES})


def test_the_code_and_the_test_of_every_rule_exist() -> None:
    for rule in RULES:
        *module, name = rule["code"].split(".")
        assert callable(getattr(importlib.import_module(".".join(["tensorprimat.logs", *module])), name))
        assert f"def {rule['test']}(" in (ROOT / f"tests/{rule['file']}.py").read_text("utf-8"), rule["test"]


def test_every_repair_names_a_known_file_or_a_report(shared: Path) -> None:
    listed = tomllib.loads((ROOT / "tools/public_logs.toml").read_text("utf-8"))["repository"]
    known = {repository["name"] for repository in listed}
    for rule in RULES:
        needs, _, file = rule["needs"].partition(", ")
        is_report, is_public = re.fullmatch(r"[\w.-]+/[\w.-]+#\d+", needs), needs in known and file
        assert is_report or is_public or needs == IN_PLACE or (shared / needs).exists(), rule["needs"]
        if needs == IN_PLACE:
            assert any(word in rule["does"] for word in ("refuses", "names", "says so")), rule["does"]
