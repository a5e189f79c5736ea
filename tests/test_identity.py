"""Identity: when two runs belong to one benchmark, and the evidence that two logs are of one run."""

import numpy as np
from each import in_each
from plausible import result

from tensorprimat.analysis.fairness import judge
from tensorprimat.core import identity
from tensorprimat.core.steps import Step, Steps
from tensorprimat.core.summary import pool, summarise


def changed(original, **config):
    return original.model_copy(update={"training_config": original.training_config.model_copy(update=config)})


def logged(*rows):
    """Return a result of these rows: dictionaries of columns, numbered from 1."""
    steps = Steps.of(Step(index=number, **{"seconds": None, **row}) for number, row in enumerate(rows, 1))
    return result().model_copy(update={"steps": steps})


def labels(fields):
    return [field.label for field in fields]


def test_runs_that_differ_in_the_seed_alone_are_of_one_benchmark():
    assert identity.differing_fields(result(), changed(result(seed=3), seed=7)) == []


def test_another_device_is_another_benchmark():
    assert labels(identity.differing_fields(result(), result(device_name="NVIDIA H200"))) == ["device"]


@in_each("field", [field for field in identity.FIELDS if field.weight != "context"])
def test_every_work_and_configuration_field_but_the_seed_identifies(field):
    assert field.identifies == (field.key != "seed")


def test_unknown_settings_match_unknown_ones_and_others_only_on_request():
    silent = changed(result(), precision=None)
    assert identity.differing_fields(silent, silent) == []
    assert labels(identity.differing_fields(result(), silent)) == ["precision"]
    assert identity.differing_fields(result(), silent, unknown_equal=True) == []
    assert identity.stated_by_some([result(), silent]) == ["precision"]


def test_versions_count_unless_left_out():
    newer = changed(result(), framework_version="99")
    assert labels(identity.differing_fields(result(), newer)) == ["framework version"]
    assert identity.differing_fields(result(), newer, context=False) == []


def test_speed_differs_clearly_beyond_eight_percent_or_twice_the_spread_of_the_steps():
    quiet, near, far = (identity.paces(result(seconds=s)) for s in (12.8, 13.1, 14.3))
    assert identity.other_speed(quiet, near) is None
    assert identity.other_speed(quiet, far) is not None
    noisy = [identity.paces(result(seconds=s, noise=0.4)) for s in (12.8, 14.3)]
    assert identity.other_speed(*noisy) is None


ROWS = [{"seconds": 1.0 + 0.01 * n, "loss": 9.0 - 0.1 * n, "ended_at": 1000.0 + n} for n in range(6)]


def without(rows, *names):
    return [{name: value for name, value in row.items() if name not in names} for row in rows]


def with_column(rows, name, values):
    return [{**row, name: value} for row, value in zip(rows, values, strict=True)]


def test_equal_dates_prove_two_logs_to_be_one_run():
    other = with_column(ROWS, "seconds", np.linspace(1.0, 1.2, 6))
    assert identity.same_run(logged(*ROWS), logged(*other))


def test_different_dates_prove_two_runs_even_of_equal_losses_and_times():
    other = with_column(ROWS, "ended_at", np.linspace(9000, 9005, 6))
    assert not identity.same_run(logged(*ROWS), logged(*other))


def test_another_argument_proves_two_runs_even_of_equal_dates():
    read = logged(*ROWS)
    beta = {name: read.changed(provenance=read.provenance.changed(arguments={"adam_beta2": name})) for name in "ab"}
    assert identity.same_run(beta["a"], beta["a"])
    assert not identity.same_run(beta["a"], beta["b"])


def test_equal_times_prove_two_logs_to_be_one_run_if_no_row_has_a_date():
    undated = without(ROWS, "ended_at")
    assert identity.same_run(logged(*undated), logged(*undated))
    assert identity.same_run(logged(*without(undated, "loss")), logged(*undated))


def test_different_losses_prove_two_runs():
    undated = without(ROWS, "ended_at")
    assert not identity.same_run(logged(*undated), logged(*with_column(undated, "loss", np.linspace(3, 2, 6))))


def test_equal_losses_prove_one_run_only_at_the_same_pace():
    undated = without(ROWS, "ended_at")
    near = with_column(undated, "seconds", [row["seconds"] * 1.002 for row in undated])
    far = with_column(undated, "seconds", [row["seconds"] * 1.2 for row in undated])
    assert identity.same_run(logged(*undated), logged(*near))
    assert not identity.same_run(logged(*undated), logged(*far))


def test_a_column_that_no_log_states_does_not_prove_two_logs_to_be_one_run():
    bare = [{"data_wait_seconds": 0.1}] * 6
    assert not identity.same_run(logged(*bare), logged(*bare))


def test_equal_rounded_times_do_not_prove_two_logs_to_be_one_run():
    rounded = [{"seconds": value} for value in (6.06, 6.06, 6.05, 6.06, 6.06, 6.05)]
    assert not identity.same_run(logged(*rounded), logged(*rounded))


def test_a_log_that_has_grown_continues_its_earlier_result():
    source = result("mi300x")
    grown = summarise(source)
    shorter = source.model_copy(update={"steps": source.steps.take(np.arange(20))})
    assert identity.continues(grown, shorter)
    unnamed = shorter.model_copy(update={"provenance": shorter.provenance.model_copy(update={"sources": ()})})
    assert not identity.continues(grown, unnamed)


def test_seeds_of_all_runs_are_compared():
    def seeded(*seeds):
        runs = [changed(result(seed=seed), seed=seed) for seed in seeds]
        return pool(
            [
                run.model_copy(update={"runs": tuple(r.model_copy(update={"seed": None}) for r in run.runs)})
                for run in runs
            ]
        )

    assert identity.BY_KEY["seed"].read(seeded(1)) == "1"
    assert identity.BY_KEY["seed"].read(seeded(*range(7, 12))) == "7, 8, 9 and 2 more"
    (seeds,) = [d for d in judge(seeded(1, 2), seeded(1, 3)).differences if d.field == "seed"]
    assert seeds.values == ("1, 2", "1, 3")
    for fewer, more in (
        (seeded(1, 2), seeded(1, 2, 3)),
        (seeded(1), seeded(1, 2)),
        (changed(result(), seed=1), seeded(1, 2)),
    ):
        assert not [d for d in judge(fewer, more).differences if d.field == "seed"], "further runs have others"
