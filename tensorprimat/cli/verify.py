"""`tprimat verify`: check the hashes of a folder or bundle of results and compute every figure again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from tensorprimat.cli.shared_options import argument, switch, takes
from tensorprimat.core.errors import InputError, UsageError


def command(
    folder: Annotated[
        Path, argument("DIR|BUNDLE", "Folder of results; its subfolders are included. Or a file of tprimat bundle.")
    ],
    logs: Annotated[
        list[Path] | None, takes("DIR", "Also search for the logs of the results in this folder (repeatable).")
    ] = None,
    signer: Annotated[
        Path | None, takes("KEY", "Public key that must have signed the bundle (ssh-keygen or minisign).")
    ] = None,
    everything: Annotated[
        bool, switch("--all", "Also show figures that agree and those that could not be checked.")
    ] = False,
    json: Annotated[bool, switch("--json", "Print JSON.")] = False,
) -> int:
    """Verify a folder or bundle of results: find files that differ from what was written, are missing, or are foreign.

    Logs and series files (steps of a long training, next to its result) are hashed again and compared with the results
    that name them. Every figure is computed again: those of a training result from its steps, those of a measurement
    by passes, warmup or sweep from its trials. Foreign files are JSON of another kind, series files that no result
    names, latest results without a copy in history/, and remains of an interrupted write. Logs are searched by name and
    by hash in DIR, in the folder above it, in the current folder, and in the folders of --logs; a log that is in none
    of them is missing if --logs is given, and unchecked otherwise. No file is written or deleted.

    A bundle is checked without anything else: every byte by its hashes, the logs in it by reading their step times
    again, and the signature next to it (BUNDLE.sig or BUNDLE.minisig). The output states whether each training trained
    (falling loss, finite gradients), and the hash of the manifest; compare it with the one that tprimat bundle printed.

    \b
    Examples:
      tprimat verify output
      tprimat verify output --logs /data/logs --json
      tprimat verify h100.zip --signer id_ed25519.pub

    \b
    Exit codes:
      0  no file differs, is missing or is foreign
      1  a file differs, is missing or is foreign; each is listed with the reason
      2  a flag is wrong, DIR is no folder with results, or a bundle is unsafe or of a newer version
    """
    import json as json_module
    import os
    from collections import Counter

    from tensorprimat.analysis.verify import WRONG, verify
    from tensorprimat.bundles.proof import verify_bundle
    from tensorprimat.system.safe_text import one_line

    bundle = verify_bundle(folder, logs=logs or [], signer=signer) if os.path.isfile(folder) else None
    if bundle is None and signer is not None:
        raise UsageError(f"--signer {signer}: only a bundle has a signature")
    findings = verify(folder, logs=logs or []) if bundle is None else bundle.findings
    if not findings:
        raise InputError("no benchmark results in this folder", path=folder, remedy="name a folder with result files")
    wrong = [finding for finding in findings if finding.state in WRONG]
    counts = Counter(finding.state for finding in findings)
    if json:
        document = {
            "kind": "verification",
            "folder": one_line(folder),
            "verified": not wrong,
            "counts": dict(sorted(counts.items())),
            "findings": [
                {"file": one_line(finding.path), "state": finding.state, "says": one_line(finding.says)}
                for finding in findings
            ],
        }
        if bundle is not None:
            document |= {"manifest_sha256": bundle.manifest_sha256, "training": bundle.training}
            document |= {name: bundle.manifest.get(name) for name in ("names", "left_out")}
        print(json_module.dumps(document, indent=2))
        return 1 if wrong else 0
    for finding in findings if everything else wrong:
        print(one_line(f"{finding.state:<9} {finding.path}: {finding.says}"))
    summary = ", ".join(f"{counts[state]} {state}" for state in ("ok", *WRONG, "unchecked") if counts[state])
    print(f"{summary}{'' if everything or not counts['unchecked'] else ' (--all shows them)'}")
    if bundle is not None:
        for name, says in bundle.training.items():
            print(one_line(f"training  {name}: {says}"))
        for name, why in (bundle.manifest.get("left_out") or {}).items():
            print(one_line(f"left out  {name}: {why}"))
        names = bundle.manifest.get("names", "unknown")
        print(one_line(f"names: {names}; manifest sha256 {bundle.manifest_sha256 or 'unreadable'}"))
    return 1 if wrong else 0
