"""The examples in the docstrings of the package are true."""

import doctest
import importlib
from pathlib import Path

from each import in_each

import tensorprimat

ROOT = Path(tensorprimat.__file__).parent
MODULES = sorted(
    ".".join(("tensorprimat", *path.relative_to(ROOT).with_suffix("").parts)).removesuffix(".__init__")
    for path in ROOT.rglob("*.py")
    if ">>> " in path.read_text(encoding="utf-8")
)


@in_each("name", MODULES)
def test_every_example_in_the_docstrings_of_a_module_gives_what_it_shows(name):
    found = doctest.testmod(importlib.import_module(name))
    assert (bool(found.attempted), found.failed) == (True, 0)
