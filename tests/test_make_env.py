"""The environment is built to fit the machine, and a vendor's stack is never installed over."""

import re
import sys
from pathlib import Path

import pytest
import scripts

TOOL = Path(__file__).parents[1] / "tools" / "make_env.py"


@pytest.fixture
def make_env():
    return scripts.load("tools/make_env.py")


def a_python(tmp_path, *, sees_gpu):
    """Write an interpreter that answers like one with (or without) a torch that sees a GPU; return its path."""
    python = tmp_path / "python3"
    python.write_text(
        "#!/bin/sh\n"
        f'case "$*" in *"import torch"*) exit {0 if sees_gpu else 1};; '
        "*list*) printf 'torch==2.5.0a0+rocm\\nNumPy==1.26\\nlightning==2.4\\nnemo_toolkit==2.7\\ntqdm==4\\n';; esac\n"
    )
    python.chmod(0o755)
    return str(python)


def test_a_vendor_stack_is_seen_and_pinned(make_env, tmp_path):
    stack = make_env.vendor_stack(a_python(tmp_path, sees_gpu=True))
    assert stack == ["torch==2.5.0a0+rocm", "NumPy==1.26", "lightning==2.4", "nemo_toolkit==2.7"]
    create, install = make_env.commands("python3", tmp_path / "venv", stack)
    assert "--system-site-packages" in create
    assert install[install.index("-c") + 1] == str(tmp_path / "venv" / "vendor-stack.txt")
    assert not any(word.startswith("torch==") for word in install)


def test_a_torch_that_sees_no_gpu_is_not_a_vendor_stack(make_env, tmp_path):
    assert make_env.vendor_stack(a_python(tmp_path, sees_gpu=False)) == []


def test_without_a_gpu_the_small_build_of_torch_is_installed(make_env, tmp_path):
    if make_env.torch_source()[-1].endswith(make_env.TORCH):
        pytest.skip("this machine has a GPU or a processor without CPU builds")
    create, torch, _ = make_env.commands("python3", tmp_path, [])
    assert "--system-site-packages" not in create
    assert torch[-1] == f"torch=={make_env.TORCH}+cpu"


def test_torchao_is_installed_with_the_torch_that_it_fits_and_never_over_a_vendor_stack(make_env, tmp_path):
    def installs(*arguments, **more):
        return [w for command in make_env.commands("python3", tmp_path, *arguments, **more) for w in command]

    assert f"torchao=={make_env.TORCHAO}" in installs([])
    assert f"torchao=={make_env.TORCHAO}\n" in (TOOL.parents[1] / "constraints.txt").read_text()
    for others in (installs(["torch==2.5.0a0+rocm"]), installs([], nemo=True)):
        assert not any(word.startswith("torchao") for word in others)


def test_a_dry_run_names_the_commands_and_makes_nothing(make_env, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "executable", a_python(tmp_path, sees_gpu=True))
    assert make_env.main(["--venv", str(tmp_path / "venv"), "--dry-run"]) == 0
    assert "-m venv" in capsys.readouterr().out
    assert not (tmp_path / "venv").exists()


def test_the_pins_hold_the_torch_that_is_installed(make_env):
    assert f"torch=={make_env.TORCH}\n" in (TOOL.parents[1] / "constraints.txt").read_text()


def test_nemo_gets_an_environment_and_pins_of_its_own(make_env, tmp_path):
    install = make_env.commands("python3", tmp_path / "venv", [], nemo=True)[-1]
    assert [Path(word).name for word in install if word.endswith(".txt")][-1:] == ["requirements-nemo.txt"]
    assert not any(Path(word).name in ("constraints.txt", "requirements.txt") for word in install)


def test_power_can_be_measured_after_either_command_of_the_readme():
    root = TOOL.parents[1]
    expected = r"^\s*\"?nvidia-ml-py>=\d+"
    assert re.search(expected, (root / "requirements.txt").read_text(), re.M)
    base = (root / "pyproject.toml").read_text().partition("[project.optional-dependencies]")
    assert re.search(expected, base[0], re.M)
    assert "telemetry = " in base[2]
    assert re.search(r"^nvidia-ml-py==", (root / "constraints.txt").read_text(), re.M)
