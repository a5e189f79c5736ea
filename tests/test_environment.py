"""The software that a result records: commits of packages from git, and the container."""

import json
from importlib import metadata

import pytest

from tensorprimat.machine import environment

COMMIT = "0123456789" * 4


def installed(folder, origin):
    """A package as pip leaves it, with its record of where it came from (PEP 610)."""
    info = folder / "megatron_core-0.15.3.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: megatron-core\nVersion: 0.15.3\n")
    if origin is not None:
        (info / "direct_url.json").write_text(json.dumps(origin))
    return metadata.PathDistribution(info)


def recorded(monkeypatch, distribution):
    monkeypatch.setattr(environment.metadata, "distribution", lambda _: distribution)
    return environment.versions(["megatron-core"])["megatron-core"]


@pytest.mark.parametrize(
    ("origin", "version"),
    [
        (None, "0.15.3"),
        ({"url": "https://github.com/x", "vcs_info": {"vcs": "git", "commit_id": COMMIT}}, "0.15.3 (git 012345678901)"),
        ({"url": "file:///somewhere", "dir_info": {"editable": True}}, "0.15.3"),
        ([], "0.15.3"),
    ],
)
def test_a_package_from_git_is_recorded_with_its_commit(monkeypatch, tmp_path, origin, version):
    assert recorded(monkeypatch, installed(tmp_path, origin)) == version


@pytest.mark.parametrize("packed", [False, True])
def test_a_package_that_is_worked_on_in_place_has_the_commit_of_its_working_tree(monkeypatch, tmp_path, packed):
    tree = tmp_path / "Megatron LM"
    (tree / ".git" / "refs" / "heads").mkdir(parents=True)
    (tree / ".git" / "HEAD").write_text("ref: refs/heads/main\n")
    if packed:
        (tree / ".git" / "packed-refs").write_text(f"# pack-refs\n{'f' * 40} refs/heads/my\n{COMMIT} refs/heads/main\n")
    else:
        (tree / ".git" / "refs" / "heads" / "main").write_text(f"{COMMIT}\n")
    origin = {"url": tree.as_uri(), "dir_info": {"editable": True}}
    assert recorded(monkeypatch, installed(tmp_path, origin)) == "0.15.3 (git 012345678901)"


@pytest.mark.parametrize(
    ("file", "variables", "image"),
    [
        (None, {}, None),
        ('engine="podman-5"\nimage="rocm/primus:v26.1"\nimageid="ab"\n', {}, "rocm/primus:v26.1"),
        (None, {"APPTAINER_CONTAINER": "/images/nemo_25.11.sif"}, "nemo_25.11.sif"),
        (None, {"NVIDIA_PRODUCT_NAME": "PyTorch", "NVIDIA_PYTORCH_VERSION": "25.10"}, "NVIDIA PyTorch 25.10"),
        (None, {"NVIDIA_PRODUCT_NAME": "PyTorch"}, None),
    ],
)
def test_the_container_is_what_its_maker_states(monkeypatch, tmp_path, file, variables, image):
    stated = tmp_path / ".containerenv"
    if file is not None:
        stated.write_text(file)
    monkeypatch.setattr(environment, "_IMAGE_FILE", stated)
    assert environment.container(variables) == image
