"""Tests of the effective settings of a Primus experiment file."""

from pathlib import Path

import fake_primus
import pytest
import yaml
from each import in_each

from tensorprimat.cli import main
from tensorprimat.core.errors import InputError
from tensorprimat.engines.primus.config import derived_experiment, effective
from tensorprimat.session.primus_config import configurations_of

LLAMA = Path("examples", "megatron", "configs", "MI300X", "llama3.1_8B-BF16-pretrain.yaml")


@pytest.fixture
def root(tmp_path):
    return fake_primus.checkout(tmp_path / "Primus of mine")


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch):
    for name in ("PRIMUS_PATH", "FAKE_LENGTH", "MY_LENGTH"):
        monkeypatch.delenv(name, raising=False)


def experiment(folder, text):
    return fake_primus.write(folder / "experiment.yaml", text)


def pre_trainer(*lines):
    return "\n".join(["modules:", "  pre_trainer:", *(f"    {line}" for line in lines)])


def test_an_experiment_overrides_its_presets_and_presets_override_theirs(root):
    sets = effective(root / LLAMA)
    assert sets.whole("micro_batch_size") == 2, "the experiment's, not the 4 of trainer_base"
    assert sets.whole("global_batch_size") == 32
    assert sets.whole("num_layers") == 32, "from the model's preset"
    assert sets.settings["fp8"] is None, "from the base of the trainer's preset"
    assert sets.missing_presets == ()


def test_presets_of_old_versions_name_their_base_by_bases(tmp_path):
    old = fake_primus.checkout(tmp_path, old=True)
    sets = effective(old / "examples/megatron/configs/llama3.1_8B-pretrain.yaml")
    assert sets.precision == "bf16"


def test_the_environment_fills_placeholders_and_their_defaults_apply_otherwise(root, monkeypatch):
    assert effective(root / LLAMA).whole("seq_length") == 4096
    monkeypatch.setenv("FAKE_LENGTH", "2048")
    assert effective(root / LLAMA).whole("seq_length") == 2048


def test_a_placeholder_without_default_or_value_names_the_variable(root, monkeypatch):
    path = experiment(root, pre_trainer("overrides:", "  seq_length: ${MY_LENGTH}"))
    with pytest.raises(InputError, match=r"\$\{MY_LENGTH\} has no default and MY_LENGTH is not set; export MY_LENGTH="):
        effective(path)
    monkeypatch.setenv("MY_LENGTH", "512")
    assert effective(path).whole("seq_length") == 512


@in_each(
    ("overrides", "precision"),
    [
        (["fp8: hybrid", "bf16: true"], "fp8"),
        (["bf16: true"], "bf16"),
        (["bf16: false", "fp16: true"], "fp16"),
        (["bf16: false"], "fp32"),
        (["train_iters: 5"], None),
    ],
)
def test_the_precision_follows_from_the_flags_of_megatron(tmp_path, overrides, precision):
    path = experiment(tmp_path, pre_trainer("overrides:", *(f"  {line}" for line in overrides)))
    assert effective(path).precision == precision


def test_a_file_outside_any_checkout_names_the_presets_that_it_lacks(tmp_path, root, monkeypatch):
    path = experiment(tmp_path, pre_trainer("config: pre_trainer.yaml", "model: llama3.1_8B", "overrides: {}"))
    assert effective(path).missing_presets == ("pre_trainer.yaml", "llama3.1_8B")
    monkeypatch.setenv("PRIMUS_PATH", str(root))
    assert effective(path).whole("num_layers") == 32


@in_each(
    ("text", "complaint"),
    [
        ("", "holds no settings"),
        ("- 1\n- 2\n", "holds no settings"),
        ("a: [1,\nb: 2", r"experiment.yaml:2: is not YAML"),
        ("modules: {}\n", "is not a Primus experiment"),
        (pre_trainer("overrides: 5"), "is not a Primus experiment"),
        ("a: !!python/object/apply:os.system ['true']\n", "is not YAML"),
    ],
)
def test_a_file_that_is_not_an_experiment_is_refused_in_one_line(tmp_path, text, complaint):
    with pytest.raises(InputError, match=complaint) as refused:
        effective(experiment(tmp_path, text))
    assert "\n" not in str(refused.value)


def test_a_missing_file_a_folder_and_a_binary_are_refused(tmp_path):
    with pytest.raises(InputError, match="no such file"):
        effective(tmp_path / "none.yaml")
    with pytest.raises(InputError, match="a folder, not a file"):
        effective(tmp_path)
    (tmp_path / "experiment.yaml").write_bytes(b"\xff\xfe\x00binary")
    with pytest.raises(InputError, match="not UTF-8 text"):
        effective(tmp_path / "experiment.yaml")


def test_links_in_a_circle_are_refused_in_one_line(tmp_path, capsys):
    (tmp_path / "loop.yaml").symlink_to("loop.yaml")
    assert main(["primus", str(tmp_path / "loop.yaml")]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


@in_each(
    "text",
    [
        "a: &a {b: *a}",
        "a: &a [1,1,1,1,1,1,1,1,1,1]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b,*b,*b,*b,*b]\n"
        "d: &d [*c,*c,*c,*c,*c,*c,*c,*c,*c,*c]\ne: [*d,*d,*d,*d,*d,*d,*d,*d,*d,*d,*d,*d]",
        "m0: &m0 {a: 1}\n" + "".join(f"m{n}: &m{n}\n  <<: [*m{n - 1}, *m{n - 1}]\n" for n in range(1, 30)),
        "a: " + "[" * 5000,
        "a: 2026-13-45",
        "a: \0",
    ],
)
def test_yaml_that_is_not_a_configuration_is_refused_in_one_line(tmp_path, capsys, text):
    (tmp_path / "experiment.yaml").write_text(text + "\n")
    assert main(["primus", str(tmp_path / "experiment.yaml")]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_a_file_that_extends_itself_is_refused(tmp_path):
    path = experiment(tmp_path, "extends: experiment.yaml\n" + pre_trainer("overrides: {}"))
    with pytest.raises(InputError, match="extends itself"):
        effective(path)


def test_a_setting_that_should_be_a_number_and_is_not_names_file_and_value(tmp_path):
    path = experiment(tmp_path, pre_trainer("overrides:", "  micro_batch_size: many"))
    with pytest.raises(InputError, match="micro_batch_size: 'many' is not a whole number"):
        effective(path).whole("micro_batch_size")


def test_a_derived_file_keeps_placeholders_and_everything_that_was_not_changed(root):
    document = yaml.safe_load(derived_experiment(root / LLAMA, {"train_iters": 7, "fp8": "hybrid"}))
    overrides = document["modules"]["pre_trainer"]["overrides"]
    assert (overrides["train_iters"], overrides["fp8"]) == (7, "hybrid")
    assert (overrides["seq_length"], overrides["micro_batch_size"]) == ("${FAKE_LENGTH:4096}", 2)
    assert document["work_group"] == "${FAKE_TEAM:nobody}"


def test_a_derived_file_still_finds_what_it_extends(tmp_path):
    fake_primus.write(tmp_path / "base.yaml", pre_trainer("overrides:", "  micro_batch_size: 8"))
    path = experiment(tmp_path, "extends: [base.yaml]\n" + pre_trainer("overrides:", "  train_iters: 5"))
    elsewhere = fake_primus.write(tmp_path / "other" / "derived.yaml", derived_experiment(path, {"train_iters": 9}))
    sets = effective(elsewhere)
    assert (sets.whole("micro_batch_size"), sets.whole("train_iters")) == (8, 9)


def test_settings_that_both_sides_state_and_that_are_unequal_differ(root):
    [found] = configurations_of(root / LLAMA, model=None, precision=None, methodology="agreed", gpu="H100 SXM")
    differing = {one.name: one.differs for one in found.settings}
    assert found.nvidia.model == "llama"
    assert (differing["micro_batch_size"], differing["tensor_model_parallel_size"]) == (True, False)
    assert not differing["recompute_granularity"], "the methodology does not state it"


def test_a_configuration_of_an_unknown_model_is_compared_with_nothing(root):
    path = root / LLAMA.with_name("mine.yaml")
    path.write_text((root / LLAMA).read_text())
    [found] = configurations_of(path, model=None, precision=None, methodology="agreed", gpu="H100 SXM")
    assert found.nvidia is None
    assert "give --model" in found.no_nvidia_because
    assert not any(one.differs for one in found.settings)
