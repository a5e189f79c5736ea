#!/usr/bin/env python3
"""Build .venv: everything that benchmark.py, compare_results.py and the tests need.

    python3 tools/make_env.py            .venv in the project folder
    python3 tools/make_env.py --nemo     .venv-nemo: NeMo and its pins, which cannot share one environment with the rest
    python3 tools/make_env.py --dry-run  only print the commands

Three kinds of machine:
- python3 already has a torch that sees the GPU (NeMo, Primus and ROCm images): .venv sees that stack
  (--system-site-packages) and none of it is installed over;
- an NVIDIA GPU without such a torch: the ordinary build of torch comes from PyPI;
- no GPU: the CPU build, from PyTorch's own index.
On ROCm without torch it stops and says where the wheel comes from.
Exit codes: 0 done, 1 pip failed, 2 needs a decision. Only the standard library is used: it runs first.
"""

from __future__ import annotations

import argparse
import platform
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TORCH = "2.13.0"
TORCHAO = "0.18.0"  # for that torch; another one may fail in transformers' import of it
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
STACK = (
    "torch", "triton", "pytorch-triton", "numpy", "lightning", "pytorch-lightning", "nemo", "megatron", "transformer",
    "apex", "flash", "nvidia", "cuda", "aiter", "primus",
)  # fmt: skip
"""Prefixes of the packages around which a vendor's image was built."""
REQUIREMENTS = {False: ("requirements.txt", "requirements-dev.txt"), True: ("requirements-nemo.txt",)}
CONSTRAINTS = {False: "constraints.txt", True: "constraints-nemo.txt"}
"""By --nemo."""
NO_ROCM_TORCH = """make_env: an AMD GPU (/dev/kfd) but no torch for ROCm in this python3. Install it first, for example
  python3 -m pip install torch --index-url https://download.pytorch.org/whl/rocm6.4
(PyTorch's own index; take the rocm version of your driver), or use a ROCm or Primus image."""


def vendor_stack(python: str) -> list[str]:
    """Return the pins of the vendor stack if this python has a torch that sees a GPU, else nothing."""
    sees_gpu = "import torch, sys; sys.exit(0 if torch.cuda.is_available() else 1)"
    if subprocess.run([python, "-c", sees_gpu], capture_output=True, check=False).returncode:
        return []
    freeze = [python, "-m", "pip", "list", "--format=freeze", "--disable-pip-version-check"]
    packages = subprocess.run(freeze, capture_output=True, text=True, check=True).stdout.split()
    return [pin for pin in packages if pin.lower().startswith(STACK)]


def torch_source() -> list[str]:
    """Return the pip arguments that install the right torch on a machine without one."""
    if Path("/dev/nvidiactl").exists() or Path("/dev/dxg").exists() or sys.platform == "darwin":
        return [f"torch=={TORCH}"]
    if platform.machine() in ("x86_64", "aarch64"):
        return ["--extra-index-url", CPU_INDEX, f"torch=={TORCH}+cpu"]
    return [f"torch=={TORCH}"]


def commands(python: str, venv: Path, stack: list[str], *, nemo: bool = False) -> list[list[str]]:
    """Return the commands that build the environment, in order.

    stack: version pins that must not be overwritten.
    """
    pip = [str(venv / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    requirements = [word for name in REQUIREMENTS[nemo] for word in ("-r", str(ROOT / name))]
    if stack:
        return [
            [python, "-m", "venv", "--system-site-packages", str(venv)],
            [*pip, "-c", str(stack_file(venv)), *requirements],
        ]
    pins = ["-c", str(ROOT / CONSTRAINTS[nemo])] if sys.version_info >= (3, 11) else []  # numpy's pin needs 3.11
    fp8 = [] if nemo else [f"torchao=={TORCHAO}"]
    return [
        [python, "-m", "venv", str(venv)],
        [*pip, *pins, "--no-deps", "--retries", "1", *fp8, *torch_source()],  # their requirements: from the index below
        [*pip, *pins, *requirements],
    ]


def stack_file(venv: Path) -> Path:
    """Return the path of the vendor stack's pins, inside the environment that respects them."""
    return venv / "vendor-stack.txt"


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--venv", type=Path, help="where it goes (default: .venv, or .venv-nemo with --nemo)")
    parser.add_argument("--nemo", action="store_true", help="the environment of requirements-nemo.txt")
    parser.add_argument("--dry-run", action="store_true")
    options = parser.parse_args(argv)
    venv = (options.venv or ROOT / (".venv-nemo" if options.nemo else ".venv")).absolute()
    stack = vendor_stack(sys.executable)
    if not stack and Path("/dev/kfd").exists():
        print(NO_ROCM_TORCH, file=sys.stderr)
        return 2
    if stack and not options.dry_run:
        venv.mkdir(parents=True, exist_ok=True)
        stack_file(venv).write_text("\n".join(stack) + "\n")
    for command in commands(sys.executable, venv, stack, nemo=options.nemo):
        print("+", *command, flush=True)
        if not options.dry_run and subprocess.run(command, check=False).returncode:
            again = "make nemo-env" if options.nemo else "make env"
            print(f"make_env: the command above failed; run `{again}` again to go on", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
