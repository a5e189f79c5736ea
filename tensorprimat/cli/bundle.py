"""`tprimat bundle`: pack results with their evidence into one file, which `tprimat verify` checks anywhere."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from tensorprimat.cli.options import refuse_unwritable, say_each
from tensorprimat.cli.shared_options import argument, switch, takes
from tensorprimat.core.folders import DEFAULT_FOLDER
from tensorprimat.core.quantities import counted


def command(
    output: Annotated[Path, takes("FILE", "Bundle to write, such as h100.zip.", "--output", "-o")],
    folder: Annotated[Path, argument("DIR", "Folder of results; its subfolders are included.")] = DEFAULT_FOLDER,
    logs: Annotated[
        list[Path] | None, takes("DIR", "Also search for the logs of the results in this folder (repeatable).")
    ] = None,
    sign: Annotated[
        Path | None, takes("KEY", "Sign with this private key of ssh-keygen or minisign; writes FILE.sig or .minisig.")
    ] = None,
    keep_names: Annotated[
        bool, switch("--keep-names", "Keep names of hosts and users, paths, and environment variables.")
    ] = False,
) -> int:
    """Write a folder of results, with their logs, traces, commands and environment, to one file with every hash.

    tprimat verify FILE computes every figure again, without the machine that measured them, and finds any altered byte.
    The printed hash of the manifest stands for the whole content: publish it with the figures. Equal input gives equal
    bytes.

    Names of hosts and users, folders of paths, addresses, secrets, and environment variables that do not change speed
    are replaced in every text; the manifest states in which files. Numbers stay, so every figure can be computed again.
    Files in which names cannot be replaced (binary files) are left out and listed. Look at the bundle before you
    publish it: a name that stands alone in a text is not recognised.

    \b
    Examples:
      tprimat bundle output -o h100.zip
      tprimat bundle output -o h100.zip --logs /data/logs --sign ~/.ssh/id_ed25519

    \b
    Exit codes:
      0  written
      1  a file could not be written, or not be signed
      2  a flag is wrong, or DIR contains no result
    """
    from tensorprimat.bundles.archive import sign_bundle
    from tensorprimat.bundles.proof import pack

    refuse_unwritable(output=output)
    packed = pack(folder, output, logs=logs or [], keep_names=keep_names)
    say_each(f"left out: {name}: {why}" for name, why in packed.left_out.items())
    names = "names kept" if keep_names else f"names removed from {counted(packed.replaced, 'place')}"
    print(f"{output}: {counted(packed.files, 'file')}, {names}")
    print(f"manifest sha256 {packed.manifest_sha256}")
    if sign is not None:
        print(f"signature {sign_bundle(output, sign)}")
    return 0
