"""The tables of the readers (data/dialects.toml, formats.toml, metric_names.toml) hold values of the declared kinds."""

import dataclasses
from typing import get_type_hints

from each import in_each
from pydantic import TypeAdapter, ValidationError

from tensorprimat.core.result import TrainingConfig
from tensorprimat.core.steps import Step
from tensorprimat.logs import metric_names
from tensorprimat.logs.dialects import DIALECTS, Dialect, Number
from tensorprimat.logs.format import Format
from tensorprimat.logs.formats import FORMATS

OF_STEP = {one.name for one in dataclasses.fields(Step)}
TOTALS = {"total_tokens", "tokens_before", "total_samples", "total_steps"}
SUMS_OF_ROWS = {*TOTALS, "elapsed", "label_tokens", "interval_seconds"}
MEANT_BY_NUMBERS = OF_STEP | SUMS_OF_ROWS | {"steps_per_second"}
MEANT_BY_SETTINGS = {*TrainingConfig.model_fields, "gpus_per_node", "epochs", "steps_of_epoch"}
MEANT_BY_METRICS = OF_STEP | {
    "total_tokens", "total_samples", "tokens_before", "seconds_so_far", "other_work", "hooks", "epoch",
}  # fmt: skip


def wrong_values(record, *, without=()):
    """Return the fields whose value is not of the declared type."""
    hints = get_type_hints(type(record), include_extras=True)
    wrong = []
    for name in (one.name for one in dataclasses.fields(record) if one.name not in without):
        try:
            TypeAdapter(hints[name]).validate_python(getattr(record, name), strict=True)
        except ValidationError:
            wrong.append(name)
    return wrong


@in_each("dialect", DIALECTS)
def test_a_dialect_has_values_of_the_declared_types_and_numbers_that_mean_a_field(dialect):
    assert wrong_values(dialect) == []
    assert [wrong_values(number) for number in (*dialect.numbers, *dialect.settings) if wrong_values(number)] == []
    assert {number.means for number in dialect.numbers} <= MEANT_BY_NUMBERS
    assert {number.means for number in dialect.settings} <= MEANT_BY_SETTINGS
    stated = {field for _, field in dialect.words} | {field for _, field, _ in dialect.implies}
    assert stated | {field for field, _ in dialect.products} <= MEANT_BY_SETTINGS
    assert {part for _, parts in dialect.products for part in parts} <= MEANT_BY_SETTINGS


@in_each("log_format", FORMATS)
def test_a_format_has_values_of_the_declared_types_and_names_other_formats(log_format):
    others = ("detect", "read", "runs", "samples")
    names = {one.name for one in FORMATS}
    declared = {one.name: Format.__annotations__[one.name] for one in dataclasses.fields(Format)}
    for field in (one for one in declared if one not in others):
        value = getattr(log_format, field)
        kind = {"bool": bool, "str": str}.get(declared[field], tuple)
        assert isinstance(value, kind), field
        texts = bytes if "bytes" in declared[field] else str
        assert kind is not tuple or all(isinstance(text, texts) and text for text in value), field
    assert {*log_format.together, *log_format.yields_to, *log_format.falls_back_to} <= names


def test_every_name_of_a_metric_means_a_field_in_a_positive_unit():
    assert {field for field, _ in metric_names._FIELDS.values()} <= MEANT_BY_METRICS
    assert all(factor > 0 for _, factor in metric_names._FIELDS.values())


def test_a_wrong_value_is_found():
    number = Number(spelled="| loss {} ", before="| loss ", means="loss", decimals=2.5)
    assert wrong_values(number) == ["decimals"]
    dialect = Dialect(name="a", source="a", reads="a", looks_for="a", row="a", marks="loss", varies="yes")
    assert wrong_values(dialect) == ["marks", "varies"]
