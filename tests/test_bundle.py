"""A bundle carries results and their evidence, shows any altered byte, and betrays no name."""

import json
import shutil
import stat
import subprocess
import zipfile

import pytest
from each import in_each
from test_verify import ROW

from tensorprimat.bundles import archive
from tensorprimat.bundles.redaction import Redactor
from tensorprimat.cli import main

HEAD = """gpu-node-17.cluster.local:12:12 [0] NCCL INFO Bootstrap : Using eth0:10.12.3.4<0>
Launching /home/alice/work/train.py --data-path /data/teams/secret-project/c4 USER=alice HOSTNAME=gpu-node-17
WANDB_API_KEY=abcdef0123 NCCL_DEBUG=INFO MY_FILE=/home/alice/.tok alice reads https://wandb.ai/alice/run
"""
SECRETS = ("alice", "gpu-node-17", "secret-project", "abcdef0123", "10.12.3.4", ".tok")


@pytest.fixture
def folder(tmp_path, monkeypatch, capsys):
    """A folder with the result of a log that names a host, a user and paths, and whose loss falls."""
    monkeypatch.chdir(tmp_path)
    rows = [ROW.format(second=i, index=i, samples=64 * i, ms=1000 + 7.3 * (i % 5)) for i in range(1, 41)]
    rows = [row.replace("9.0E+00 |", f"{9 - 0.1 * i:.2f} | grad norm: 1.2 |") for i, row in enumerate(rows)]
    (tmp_path / "alice.log").write_text(HEAD + "".join(rows))
    assert main(["extract", "--log-file", "alice.log", "--model-name", "llama", "--output", "output/"]) == 0
    path = next((tmp_path / "output").glob("benchmark_*.json"))
    document = json.loads(path.read_text())
    document["provenance"] |= {"host": "gpu-node-17", "command": "train --output /home/alice/out"}
    for copy in (path, *(tmp_path / "output" / "history").iterdir()):
        copy.write_text(json.dumps(document))
    capsys.readouterr()
    return tmp_path / "output"


@pytest.fixture
def bundle(folder, capsys):
    assert main(["bundle", str(folder), "-o", "h100.zip"]) == 0
    capsys.readouterr()
    return folder.parent / "h100.zip"


def verified(path, capsys, *flags):
    code = main(["verify", str(path), "--json", *flags])
    captured = capsys.readouterr()
    document = json.loads(captured.out) if captured.out else {}
    wrong = {one["file"].rpartition("h100.zip")[2].lstrip("/") for one in document.get("findings", ())
             if one["state"] not in ("ok", "unchecked")}  # fmt: skip
    return code, wrong, document or captured.err


def members(path):
    with zipfile.ZipFile(path) as packed:
        return {name: packed.read(name) for name in packed.namelist()}


def test_a_bundle_is_verified_on_another_machine_and_states_that_the_training_trained(bundle, tmp_path, capsys):
    (tmp_path / "alice.log").unlink()
    shutil.rmtree(tmp_path / "output")
    code, wrong, document = verified(bundle, capsys)
    assert (code, wrong, document["names"], document["left_out"]) == (0, set(), "redacted", {})
    says = [one["says"] for one in document["findings"]]
    assert any("figures agree with 40 rows" in one for one in says)
    assert any("is the one that was read, by the hash before redaction" in one for one in says)
    assert any("40 step times read again from its log user-1.log agree" in one for one in says)
    (sentence,) = document["training"].values()
    assert sentence.startswith("the loss falls from 8.55 to 5.55")
    assert sentence.endswith("gradients are finite in all 40 rows that state them")
    manifest = hash_of(members(bundle)["manifest.json"])
    assert document["manifest_sha256"] == manifest
    assert manifest.encode() in bundle.read_bytes()[-200:]


def hash_of(content):
    import hashlib

    return hashlib.sha256(content).hexdigest()


def test_a_training_that_states_no_loss_or_gradient_is_not_said_to_have_trained(folder, capsys):
    for path in (*folder.glob("*.json"), *(folder / "history").iterdir()):
        document = json.loads(path.read_text())
        for name in ("loss", "gradient_norm"):
            del document["step_metrics"][name]
        document["runs"][0]["final_loss"] = None
        path.write_text(json.dumps(document))
    main(["bundle", str(folder), "-o", "h100.zip"])
    capsys.readouterr()
    _, _, document = verified("h100.zip", capsys)
    assert set(document["training"].values()) == {"loss: not stated, or in too few steps; gradients: not stated"}


def test_equal_input_gives_equal_bytes(bundle, folder):
    first = bundle.read_bytes()
    assert main(["bundle", str(folder), "-o", str(bundle)]) == 0
    assert bundle.read_bytes() == first


def test_no_name_is_in_a_bundle_unless_asked_for(bundle, folder, capsys):
    content = b"\n".join([*members(bundle).values(), *(name.encode() for name in members(bundle))]).decode()
    assert [secret for secret in SECRETS if secret in content] == []
    assert "NCCL_DEBUG=INFO" in content
    assert "host-1" in content
    assert main(["bundle", str(folder), "-o", str(bundle), "--keep-names"]) == 0
    assert all(secret in b"\n".join(members(bundle).values()).decode() for secret in SECRETS)
    capsys.readouterr()
    assert verified(bundle, capsys)[:2] == (0, set())


@in_each(
    ("line", "expected"),
    [
        ("1.5 tokens/s/GPU at 3/4 | 12:30/ 40", None), ("cudnn 9.1.0.70, cu12==12.4.5.8", None), ("GBS=128", None),
        ('{"command": "a\\n/srv/x/y.py"}', '{"command": "a\\n/redacted/y.py"}'), ("DATA_NAME=c4", "DATA_NAME=redacted"),
        (r"C:\Users\bob\y.log", "/redacted/y.log"), ("by bob.b@site.edu", "by redacted@redacted"),
        ("--init tcp://node7.x:29500/a", "--init tcp://redacted"), ("10.2.3.4:29500", "redacted:29500"),
        ("password: hunter2", "password: redacted"), ('"CUDA_X": "1"', None),
        ('"MY_VAR": "a b"', '"MY_VAR": "redacted"'),
        ("bob@login-3:~$ ls", "user-1@host-5:~$ ls"), ("ran by bob on login-3.", "ran by user-1 on host-5."),
        ("--api-key a1b2 --x 1", "--api-key redacted --x 1"), ("x --password hunter2", "x --password redacted"),
        ("Authorization: Bearer a.b", "Authorization: Bearer redacted"), ("my_token=ab12cd34", "my_token=redacted"),
        ("wandb login 0123456789abcdef0123", "wandb login redacted"), ("key AKIAIOSFODNN7EXAMPLE", "key redacted"),
        ("aws_secret_access_key = Ab/c", "aws_secret_access_key = redacted"), ("s3://team/x", "s3://redacted"),
        ("pad_token=None, eos token: 128001, ms/token: 0.123456", None), ("12:30:15 std::abs 2026:01", None),
        ("MASTER_ADDR=203.0.113.7", "MASTER_ADDR=redacted"), ("at fe80::1ff:23 now", "at redacted now"),
        ("bash --hf-token hf_Ab", "bash --hf-token redacted"), ("of 198.51.100.4, 4.5.6.7", "of redacted, 4.5.6.7"),
        (r'{"run": "a \"/srv/b c/d\""}', r'{"run": "a \"/redacted/d\""}'),
        ("'/srv/top secret/x y.log'", "'/redacted/x y.log'"),
        ('"/bin/python t.py --seq 8"', '"/redacted/python t.py --seq 8"'),
        ("SLURM_NODELIST=gpu[08-10],log1", "SLURM_NODELIST=redacted,host-5"),
        ("srun: error: gpu09: x", "srun: error: host-2: x"),
        ("JOB 1 ON tux7 CANCELLED", "JOB 1 ON host-6 CANCELLED"), ("ssh ip-10-0-3-4", "ssh host-4"),
        ("uid=1000(judy)", "uid=1000(user-2)"), ("user: oscar", "user: user-2"),
    ],
)  # fmt: skip
def test_names_are_replaced_and_figures_are_not(line, expected):
    names = Redactor()
    stated = ("bob@login-3:~$ ls", "SLURM_JOB_NODELIST=gpu[08-10]", "srun: error: ip-10-0-3-4: x", "host: 198.51.100.4")
    for named in (*stated, line):
        names.learn(named)
    found, count = names.settled().apply(line)
    assert (found, bool(count)) == (expected or line, expected is not None)


def test_names_of_files_that_would_become_one_or_could_not_be_unpacked_change(folder, bundle, capsys):
    for place in ("10.0.0.1", "10.0.0.2", "10.0.0.1/12:00"):
        shutil.copytree(folder / "history", folder / place / "history")
    assert main(["bundle", str(folder), "-o", str(bundle)]) == 0
    capsys.readouterr()
    assert verified(bundle, capsys)[:2] == (0, set())
    folders = {name.rpartition("/history/")[0] for name in members(bundle) if "history" in name}
    assert folders == {"results", "results/redacted", "results/2-redacted", "results/redacted/12_00"}


def test_any_altered_byte_is_found(bundle, capsys):
    whole = bundle.read_bytes()
    for place in range(0, len(whole), 199):
        bundle.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        assert main(["verify", str(bundle)]) in (1, 2), place
    bundle.write_bytes(whole[:-500])
    assert main(["verify", str(bundle)]) == 1
    assert "Traceback" not in capsys.readouterr().err


def repacked(path, content):
    """Write members again with right hashes, except for the manifest's."""
    path.unlink()
    with zipfile.ZipFile(path, "w") as packed:
        for name, text in content.items():
            packed.writestr(name, text)


def test_an_altered_an_added_and_a_missing_file_are_named(bundle, capsys):
    content = members(bundle)
    log = next(name for name in content if name.startswith("logs/"))
    result = next(name for name in content if name.count("/") == 1)
    changed = {**content, log: content[log].replace(b"1007.3", b"1007.4"), "results/more.txt": b"x"}
    del changed[result]
    repacked(bundle, changed)
    code, wrong, _ = verified(bundle, capsys)
    assert (code, wrong >= {log, result, "results/more.txt", ""}) == (1, True)
    repacked(bundle, {**content, "manifest.json": content["manifest.json"].replace(b'"redacted"', b'"kept"')})
    assert verified(bundle, capsys)[0] == 1


def forged(path, content, **facts):
    """Write a bundle whose hashes are right, with the code that writes bundles."""
    document = json.loads(content.pop("manifest.json"))
    originals = {one["name"]: one for one in document.pop("files")}

    def writer(name, text):
        kept = {key: originals[name][key] for key in ("original_sha256", "replaced") if key in originals[name]}
        return lambda to: (to.write(text), kept)[1]

    archive.write_bundle(path, {name: writer(name, text) for name, text in content.items()}, {**document, **facts})


def test_forged_steps_contradict_the_log_in_the_bundle(bundle, capsys):
    content = members(bundle)
    for name in [name for name in content if name.startswith("results/")]:
        document = json.loads(content[name])
        document["raw_step_times"] = [one * 0.9 for one in document["raw_step_times"]]
        document["provenance"]["assumed"] = {}
        content[name] = json.dumps(document).encode()
    forged(bundle, content)
    code, _, document = verified(bundle, capsys)
    assert code == 1
    assert any("40 of 40 step times differ from its log" in one["says"] for one in document["findings"])


def test_a_bundle_of_a_newer_version_is_refused_in_one_line(bundle, capsys):
    forged(bundle, members(bundle), format=2)
    code, _, error = verified(bundle, capsys)
    assert (code, error.count("\n")) == (2, 1)
    assert "a bundle of format 2" in error
    assert "update TensorPrimat" in error


def test_a_manifest_of_other_types_is_damage(bundle, capsys):
    content = members(bundle)
    forged(bundle, dict(content), left_out=["x"])
    assert verified(bundle, capsys)[:2] == (1, {""})
    manifest = json.loads(content["manifest.json"])
    manifest["files"][0]["bytes"] = "x"
    repacked(bundle, {**content, "manifest.json": json.dumps(manifest).encode()})
    assert verified(bundle, capsys)[0] == 1


def sealed(path, infos):
    """Write a ZIP of these members that ends with right hashes, as an attacker could."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr("manifest.json", "{}")
        for info, text in infos:
            packed.writestr(info, text, zipfile.ZIP_DEFLATED)
        packed.comment = b" " * archive._END_BYTES
    content = path.read_bytes()[: -archive._END_BYTES]
    path.write_bytes(content + archive._END.format(manifest=hash_of(b"{}"), file=hash_of(content)).encode())


def odd(name="results/odd", kind=stat.S_IFREG, text="/etc/passwd"):
    info = zipfile.ZipInfo(name)
    info.external_attr = (kind | 0o644) << 16
    return info, text


@in_each(
    "member",
    [
        *map(odd, ["../evil", "/tmp/evil", "a/../../evil", "a\\..\\evil", "C:evil", "./evil", "results/", "a//b"]),
        *(odd(kind=kind) for kind in (stat.S_IFLNK, stat.S_IFCHR, stat.S_IFBLK, stat.S_IFIFO, stat.S_IFDIR)),
        odd(text="\0" * 2**26),
        odd(name="manifest.json"),
    ],
)
@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_paths_outside_links_devices_bombs_and_twins_are_refused_before_anything_is_written(member, tmp_path, capsys):
    path = tmp_path / "x.zip"
    sealed(path, [member])
    assert main(["verify", str(path)]) == 2
    error = capsys.readouterr().err
    assert (error.count("\n"), "refused, nothing was unpacked" in error) == (1, True)
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    assert main(["verify", str(path)]) == 1
    assert [one.name for one in tmp_path.rglob("*")] == ["x.zip"]


def test_a_folder_without_results_and_a_file_that_is_no_bundle_are_refused_in_one_line(tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    (tmp_path / "text").write_text("x")
    for arguments in (["bundle", str(tmp_path / "empty"), "-o", "x.zip"], ["verify", str(tmp_path / "text")]):
        assert main(arguments) == 2
        assert capsys.readouterr().err.count("\n") == 1


def test_a_log_that_is_gone_and_a_binary_file_are_left_out_and_listed(folder, capsys):
    (folder.parent / "alice.log").unlink()
    (folder / "trace.bin").write_bytes(b"\0\1")
    assert main(["bundle", str(folder), "-o", "h100.zip"]) == 0
    assert "trace.bin: binary" in capsys.readouterr().err
    code, wrong, document = verified("h100.zip", capsys)
    assert (code, wrong, len(document["left_out"])) == (0, set(), 2)


KEY_MAKERS = {
    "ssh-keygen": ["-q", "-t", "ed25519", "-N", "", "-f", "{}"],
    "minisign": ["-G", "-W", "-s", "{}", "-p", "{}.pub"],
}


@pytest.mark.parametrize("program", KEY_MAKERS)
def test_a_signature_shows_who_signed(folder, tmp_path, capsys, program):
    if shutil.which(program) is None:
        pytest.skip(f"needs {program}")
    for name in ("key", "other"):
        made = [program, *(part.format(name) for part in KEY_MAKERS[program])]
        subprocess.run(made, cwd=tmp_path, check=True, stdout=subprocess.DEVNULL)
    assert main(["bundle", str(folder), "-o", "h100.zip", "--sign", "key"]) == 0
    capsys.readouterr()
    assert verified("h100.zip", capsys, "--signer", "key.pub")[0] == 0
    assert verified("h100.zip", capsys)[0] == 0
    assert verified("h100.zip", capsys, "--signer", "other.pub")[0] == 1
    (tmp_path / "h100.zip").write_bytes((tmp_path / "h100.zip").read_bytes() + b"\n")
    assert verified("h100.zip", capsys, "--signer", "key.pub")[0] == 1
    next(tmp_path.glob("h100.zip.*sig")).unlink()
    assert verified("h100.zip", capsys, "--signer", "key.pub")[0] == 2
