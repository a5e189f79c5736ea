"""Addresses of the project in the metadata of a wheel: those of the public repository that the checkout is a clone of.

All else that setuptools needs stands in pyproject.toml.
"""

import re
import subprocess
from email.parser import Parser
from pathlib import Path

from setuptools import setup  # type: ignore[import-untyped]

HERE = Path(__file__).parent
_REMOTE = re.compile(r"(?:https?://|ssh://|(?=[^/]+@))(?:[^@/]*@)?([\w.-]+\.[a-z]{2,})(?::\d+)?[:/](.+?)(?:\.git)?/?")
"""An address of a remote repository, without user, password and port; a path on this machine is none."""


def project_urls() -> dict[str, str]:
    """Return the names and addresses of the project's pages.

    They come from the remote `origin` of the checkout, or from the metadata of an unpacked source distribution. Empty
    for a checkout without a public remote.
    """
    stated = HERE / "PKG-INFO"
    if stated.exists():
        pairs = Parser().parsestr(stated.read_text(encoding="utf-8")).get_all("Project-URL", [])
        return dict(pair.split(", ", 1) for pair in pairs)
    if not (HERE / ".git").exists():  # a parent folder may be a checkout of something else
        return {}
    asked = ["git", "-C", str(HERE), "config", "--get", "remote.origin.url"]
    try:
        origin = subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()
    except OSError:  # no git
        return {}
    match = _REMOTE.fullmatch(origin)
    if match is None:
        return {}
    home = f"https://{match[1]}/{match[2]}"
    return {
        "Homepage": home,
        "Documentation": f"{home}/tree/HEAD/docs",
        "Changelog": f"{home}/blob/HEAD/CHANGELOG.md",
        "Issues": f"{home}/issues",
    }


if __name__ == "__main__":
    setup(project_urls=project_urls())
