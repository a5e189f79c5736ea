"""Subpackages import only what they may, and light commands stay light."""

import ast
import itertools
import re
import subprocess
import sys
from collections import Counter, defaultdict
from fnmatch import fnmatchcase
from graphlib import TopologicalSorter
from pathlib import Path

from each import in_each
from syntax import nodes

from tensorprimat.engines.registry import ENGINES

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "tensorprimat"

BASE = {"core", "facts", "storage", "audit", "models", "system"}
MAY_IMPORT = {
    "core": BASE - {"storage"},
    "facts": {"core"},
    "storage": BASE,
    "audit": BASE,
    "models": BASE,
    "system": {"core"},
    "logs": BASE,
    "machine": BASE,
    "analysis": BASE,
    "traces": BASE,
    "engines": BASE | {"logs", "machine"},
    "measure": BASE | {"machine", "engines"},
    "bundles": BASE | {"logs", "machine", "analysis"},
    "reports": BASE | {"analysis", "traces"},
    "mlperf": BASE | {"logs", "analysis", "reports"},
    "reproduce": BASE | {"analysis", "reports", "mlperf"},
    "session": BASE | {"logs", "machine", "engines", "measure", "analysis", "traces"},
    "cli": BASE
    | {"logs", "machine", "engines", "measure", "analysis", "traces", "reports", "session", "bundles"}
    | {"mlperf", "reproduce"},
}
TRAINING_STACK = {"torch", "lightning", "pytorch_lightning", "nemo", "nemo_run", "pynvml", "amdsmi", "transformers"}
TRAINING_ROOMS = {"machine", "engines", "measure"}


MODULE_NAME = re.compile(r"tensorprimat(?:\.\w+)+")
FOLDER_NAME = re.compile(r"(tensorprimat(?:\.\w+)+)\.\{")


def imports_of(node):
    """Yield every module that a node of a syntax tree imports, or names in a string.

    A string names a module if it is nothing else: it is for import_module, a field of a table, or `python -m`. The
    f-string of a module's name yields its constant folder.
    """
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and node.level == 0:
        yield node.module
        yield from (f"{node.module}.{alias.name}" for alias in node.names)
    elif isinstance(node, ast.Constant) and isinstance(node.value, str) and MODULE_NAME.fullmatch(node.value):
        yield node.value
    elif isinstance(node, ast.JoinedStr) and (folder := FOLDER_NAME.match(ast.unparse(node)[2:])):
        yield folder[1]


def imports_in(text):
    """Yield every module that a text imports or names in a string, wherever that stands."""
    for node in nodes(text):
        yield from imports_of(node)


def imported_by(path):
    """Yield every module that a file imports or names in a string."""
    return imports_in(path.read_text())


FILES = sorted(path for room in MAY_IMPORT for path in (PACKAGE / room).rglob("*.py"))
AT_THE_TOP = ("__init__.py", "__main__.py")


def outside_of_subpackages(package):
    """Return the Python files of a package that no rule about subpackages covers."""
    paths = (path.relative_to(package) for path in package.rglob("*.py"))
    return sorted(str(path) for path in paths if path.parts[0] not in MAY_IMPORT and str(path) not in AT_THE_TOP)


def test_every_module_is_in_a_subpackage_with_a_rule():
    assert not outside_of_subpackages(PACKAGE)


def refused(room, module):
    """Return True if a subpackage may not import a module of the package."""
    top, *rest = module.split(".")
    return top == "tensorprimat" and bool(rest) and rest[0] in MAY_IMPORT and rest[0] not in MAY_IMPORT[room] | {room}


@in_each(
    "planted",
    [
        "from tensorprimat.measure import watch", 'import_module("tensorprimat.measure.watch")',
        'SPECS = {"tensorprimat.measure.watch": None}', 'Row(module="tensorprimat.measure.watch")',
        'import_module(f"tensorprimat.measure.{name}")', "if late:\n    import tensorprimat.measure",
    ],
)  # fmt: skip
def test_an_import_upwards_is_found_in_every_form(planted):
    assert any(refused("engines", module) for module in imports_in(planted))
    assert not any(refused("session", module) for module in imports_in(planted))


@in_each(FILES)
def test_a_subpackage_imports_only_those_below_it(path):
    room = path.relative_to(PACKAGE).parts[0]
    for module in imported_by(path):
        top = module.partition(".")[0]
        assert not refused(room, module), f"{room} imports {module}"
        assert top not in {script.stem for script in ROOT.glob("*.py")}, f"{room} imports the command {module}"
        if top in TRAINING_STACK:
            assert room in TRAINING_ROOMS, f"{room} imports {module}"
        if top == "matplotlib":
            assert path.name == "canvas.py", f"{path.name} imports {module}"


USERS_OF_THE_PACKAGE = sorted(path for folder in ("perf", "tools") for path in (ROOT / folder).glob("*.py"))


@in_each(USERS_OF_THE_PACKAGE)
def test_top_level_scripts_import_names_that_the_package_has(path):
    for node in nodes(path.read_text()):
        if not isinstance(node, ast.ImportFrom) or not (node.module or "").startswith("tensorprimat"):
            continue
        place = ROOT.joinpath(*node.module.split("."))
        module = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
        known = set(names_of(module)) if module.is_file() else set()
        missing = [alias.name for alias in node.names if alias.name not in known | submodules_of(place)]
        assert not missing, f"{node.module} has no {', '.join(missing)}"


def names_of(module):
    """Yield the names that the top level of a module binds."""
    for node in nodes(module.read_text()):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            yield from (alias.asname or alias.name for alias in node.names)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id


def submodules_of(folder):
    return {path.stem for path in folder.glob("*.py")} | {path.parent.name for path in folder.glob("*/__init__.py")}


HEAVY = ("torch", "lightning", "transformers", "matplotlib", "numpy", "scipy", "pydantic", "pandas")
SCRIPTS = sorted(path.name for path in ROOT.glob("*.py") if "__main__" in path.read_text() and path.stem != "setup")


@in_each("script", SCRIPTS)
def test_help_of_every_command_loads_nothing_heavy_and_shows_its_manual(script):
    show = (
        "import runpy, sys\n"
        f"sys.argv = [{script!r}, '--help']\n"
        "try:\n    runpy.run_path(sys.argv[0], run_name='__main__')\n"
        "except SystemExit as stop:\n    code = stop.code\n"
        f"print('LOADED', sorted(set({HEAVY!r}) & set(sys.modules)), 'CODE', code)"
    )
    shown = subprocess.run([sys.executable, "-c", show], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert shown.stdout.splitlines()[-1] == "LOADED [] CODE 0", shown.stderr
    assert "Usage:" in shown.stdout


LIGHT = """
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition('.')[0] in {'torch', 'lightning', 'transformers', 'nemo', 'nemo_run', 'pynvml', 'amdsmi'}:
            raise ImportError('not on this laptop: ' + name)
sys.meta_path.insert(0, Refuse())
import importlib, pkgutil, tensorprimat
laptop = 'core facts storage models system logs analysis traces reports session bundles mlperf reproduce cli'
for room in laptop.split():
    package = importlib.import_module('tensorprimat.' + room)
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + '.'):
        importlib.import_module(module.name)
"""


def test_everything_a_laptop_needs_imports_without_the_training_stack():
    subprocess.run([sys.executable, "-c", LIGHT], cwd=ROOT, check=True, timeout=120)


def modules(*folders):
    """Return every module below the folders by its dotted name."""
    found = {}
    for path in itertools.chain(*((ROOT / folder).rglob("*.py") for folder in folders)):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        found[name.removesuffix(".__init__")] = path
    return found


def importers(known):
    """Return the modules that each module imports, or names in a string, of those known.

    `from package import module` imports that module, and any other name imports the package itself. Outside of the
    package, a file imports those of its own folder by their bare names. An f-string is left out: what it names is one
    of a folder's modules, such as a command of cli/, and which one is known only when it runs.
    """
    imports = {}
    for name, path in known.items():
        imports[name] = set()
        place = name.partition(".")[0]

        def found(module, place=place):
            return next((full for full in (module, f"{place}.{module}") if full in known), None)

        for node in nodes(path.read_text()):
            if isinstance(node, ast.JoinedStr):
                continue
            whole, *parts = list(imports_of(node)) or [None]
            if isinstance(node, ast.ImportFrom):
                imports[name] |= {found(part) or found(whole) for part in parts}
            else:
                imports[name] |= {found(module) for module in (whole, *parts)}
        imports[name] -= {name, None}
    return imports


def test_no_files_import_one_another_in_a_cycle():
    imports = importers(modules("tensorprimat", "perf", "tools", "tests"))
    assert list(TopologicalSorter(imports).static_order())
    assert imports["perf.calibration"] >= {"perf.calibration_page", "tensorprimat.core.steady"}
    assert "tests.syntax" in imports["tests.test_architecture"]
    assert "tensorprimat.engines.torch.engine" in imports["tensorprimat.engines.modules"]  # by a string


ABOUT_PRIMUS = ("engines/modules.py", "session/primus_config.py")
"""Modules that may name those of the Primus engine: the table of engines' modules, and the command about Primus."""


@in_each(FILES)
def test_only_the_table_of_engines_and_the_command_about_primus_name_its_modules(path):
    name = path.relative_to(PACKAGE).as_posix()
    if not name.startswith(("engines/primus/", *ABOUT_PRIMUS)):
        assert not [module for module in imported_by(path) if module.startswith("tensorprimat.engines.primus")]


COMPUTES = (
    *("tensorprimat.core.summary", "tensorprimat.core.identity", "tensorprimat.core.steady"),
    *("tensorprimat.analysis.stats", "tensorprimat.analysis.estimates", "tensorprimat.logs.segments"),
    "tensorprimat.engines.torch",
    *("glob", "concurrent.futures", "multiprocessing", "numpy", "scipy", "statistics"),
)
"""Modules from which figures, joins and processes come: the rooms below the commands call them."""


@in_each(sorted((PACKAGE / "cli").glob("*.py")))
def test_a_command_parses_calls_and_prints_and_computes_nothing(path):
    assert not {module for module in imported_by(path) if module.startswith(COMPUTES)}


ARITHMETIC = (ast.Sub, ast.Mult, ast.FloorDiv, ast.Mod, ast.Pow)  # not ast.Div: it also joins paths


def computes(text):
    """Return the lines of arithmetic and sums; a string repeated or filled in is none."""
    for node in nodes(text):
        if isinstance(node, ast.AugAssign) and isinstance(node.op, ARITHMETIC):
            yield node.lineno
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ARITHMETIC):
            if not any(
                isinstance(side, ast.Constant) and isinstance(side.value, str) for side in (node.left, node.right)
            ):
                yield node.lineno
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("sum", "round"):
            yield node.lineno


@in_each(sorted((PACKAGE / "cli").glob("*.py")))
def test_a_command_contains_no_arithmetic(path):
    found = set(computes(path.read_text()))
    assert not found or path.name == "live.py", f"lines {sorted(found)}: compute in session/ or below"


ENGINE_NAMES = frozenset(ENGINES)
COMPARED_ON_PURPOSE = {
    "storage/legacy.py": ("_TIMING",),  # of result files of the earlier scripts
    "core/identity.py": ("PRETRAINING_ENGINES",),  # of result files from before 2026-11-21: no later engine wrote one
}


def names_of_engines(node):
    """Return the engine names in a constant or a display of constants."""
    if isinstance(node, ast.Dict):
        elements = node.keys
    else:
        elements = node.elts if isinstance(node, (ast.Tuple, ast.List, ast.Set)) else [node]
    return [one.value for one in elements if isinstance(one, ast.Constant) and one.value in ENGINE_NAMES]


def compares_engines(text):
    """Return the lines that choose by an engine's name: comparisons, cases, and collections to look a name up in."""
    for node in nodes(text):
        if isinstance(node, ast.Compare):
            rows = [side for side in ast.walk(node) if isinstance(side, ast.Subscript)]
            if any(map(names_of_engines, (node.left, *node.comparators))) or any(
                names_of_engines(row.slice) and ast.unparse(row.value).endswith("ENGINES") for row in rows
            ):
                yield node.lineno
        elif isinstance(node, ast.MatchValue) and names_of_engines(node.value):
            yield node.value.lineno
        elif isinstance(node, ast.Assign) and isinstance(node.value, (ast.Tuple, ast.List, ast.Set, ast.Call)):
            display = node.value.args[0] if isinstance(node.value, ast.Call) and node.value.args else node.value
            elements = getattr(display, "elts", [])
            if elements and len(names_of_engines(display)) == len(elements):
                yield node.lineno
        elif isinstance(node, ast.Dict) and node.keys and len(names_of_engines(node)) == len(node.keys):
            yield node.lineno


@in_each(FILES)
def test_no_module_compares_the_name_of_an_engine(path):
    name = str(path.relative_to(PACKAGE))
    lines = path.read_text().splitlines()
    found = [lines[number - 1].strip() for number in compares_engines(path.read_text())]
    left = [line for line in found if not line.startswith(COMPARED_ON_PURPOSE.get(name, ()))]
    assert not left, f"{name}: declare a field in the engine's row instead of {left}"


@in_each(FILES)
def test_no_path_is_resolved_by_a_method_that_fails_on_links_in_a_circle(path):
    """Path.resolve and Path.expanduser raise RuntimeError; core.regular.resolved and os.path.expanduser do not."""
    called = [node.func for node in nodes(path.read_text()) if isinstance(node, ast.Call)]
    methods = [call for call in called if isinstance(call, ast.Attribute)]
    assert not [call for call in methods if call.attr == "resolve" and ast.unparse(call.value) != "names"]
    assert not [call for call in methods if call.attr == "expanduser" and ast.unparse(call.value) != "os.path"]


@in_each(FILES)
def test_no_path_is_asked_by_a_method_that_fails_on_names_that_are_too_long(path):
    """Path.is_file and the like raise OSError for such a name or a closed folder; the functions of os.path do not."""
    calls = [node for node in nodes(path.read_text()) if isinstance(node, ast.Call)]
    alone = [call.func for call in calls if not call.args and not call.keywords]
    methods = [call.attr for call in alone if isinstance(call, ast.Attribute)]
    assert not {"is_file", "is_dir", "exists", "is_symlink"}.intersection(methods)


TEXTS = ("formula", "own_formula", "put_in", "rests_on")
"""Fields with a formula in symbols or in numbers, or with a phrase on an interval."""
LOOKS_INTO = ("startswith", "endswith", "partition", "rpartition", "split", "removeprefix", "removesuffix", "find")


def reads_formulas(text):
    """Return the lines that compare, search or divide the text of a formula."""
    for node in nodes(text):
        if isinstance(node, ast.Compare):
            read = [node.left, *node.comparators]
            read = [] if any(isinstance(side, ast.Constant) and side.value is None for side in read) else read
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in LOOKS_INTO:
            read = [node.func.value]
        else:
            continue
        if any(isinstance(side, ast.Attribute) and side.attr in TEXTS for side in read):
            yield node.lineno


@in_each(FILES)
def test_no_module_decides_by_the_text_of_a_formula(path):
    found = list(reads_formulas(path.read_text()))
    assert not found, f"{path.name}, lines {found}: make it a field of the term, the metric or the estimate"


INTERFACES = {
    "check": ("raise UsageError where an engine cannot run a spec on a machine", "engines.*"),
    "command": ("run a command of tprimat with its options; its docstring is the manual", "cli.*"),
    "configure": ("take settings, model and devices of a reading from texts by name", "logs.*"),
    "detect": ("count the rows of one format at the beginning of a log", "logs.*"),
    "devices": ("return every GPU that a vendor's library lists", "machine.*"),
    "estimate": ("return the memory of one device for a spec", "models.training_memory engines.primus.memory"),
    "load": ("read the record of a file that this package wrote", "storage.* mlperf.library"),
    "main": ("run a module as a program; returns the exit code", "cli system.guard engines.* measure.*"),
    "read": ("read a log: of any format in the package, of one format in a reader", "logs logs.*"),
    "recomputed_share": ("return the share of layers that run again in backward", "models.training_memory engines.*"),
    "render": ("return a comparison as a whole document", "reports.*"),
    "render_csv": ("return records of one kind as CSV", "reports.*"),
    "save": ("write a record into its folder, whole or not at all", "storage.*"),
    "spec_of": ("return the spec of one run of a model on a machine", "engines.prepare engines.primus.spec"),
    "table": ("return a table of any report as text", "reports.console reports.markdown"),
    "to_json": ("return a record as the JSON of its file", "storage.*"),
    "train": ("train the run of a spec and write its result", "engines.*"),
}
"""Name of a function → the one meaning that several modules implement, and patterns of those modules."""


def top_level(statements):
    """Yield the statements of a module, also those within if, try, with and loops."""
    for statement in statements:
        yield statement
        if not isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            for part in ("body", "orelse", "finalbody", "handlers", "cases"):
                yield from top_level(getattr(statement, part, ()))


def public_names(text):
    """Return the functions, classes, constants and aliases that a module defines for others."""
    found = set()
    for statement in top_level(nodes(text)[0].body):
        if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            found.add(statement.name)
        elif isinstance(statement, (ast.Assign, ast.AnnAssign)):
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            names = itertools.chain.from_iterable(map(ast.walk, targets))
            found |= {node.id for node in names if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    return {name for name in found if not name.startswith("_")}


def doubles(texts):
    """Return each public name that several modules define, unless all of them implement its interface."""
    places = defaultdict(list)
    for module, text in texts.items():
        for name in public_names(text):
            places[name].append(module.removeprefix("tensorprimat."))
    patterns = {name: INTERFACES[name][1].split() if name in INTERFACES else () for name in places}
    return {
        name: where
        for name, where in places.items()
        if len(where) > 1 and not all(any(fnmatchcase(one, part) for part in patterns[name]) for one in where)
    }


def package_texts():
    return {name: path.read_text() for name, path in modules("tensorprimat").items()}


def test_no_public_name_is_defined_in_two_modules():
    twice = doubles(package_texts())
    assert not twice, f"one name, two meanings: rename or merge them, or make one private: {twice}"


def test_every_interface_is_implemented_by_several_modules():
    names = Counter(name for text in package_texts().values() for name in public_names(text))
    assert [name for name in INTERFACES if names[name] < 2] == []


@in_each(
    "planted",
    [
        "def planted():\n    pass", "async def planted():\n    pass", "class planted:\n    pass", "planted = 1",
        "planted: int = 1", "planted: TypeAlias = 'int | str'", "first, (planted, *others) = 1, (2, 3)",
        "if TYPE_CHECKING:\n    planted = int", "if x:\n    pass\nelse:\n    planted = 1",
        "try:\n    import a\nexcept ImportError:\n    planted = None", "try:\n    a()\nfinally:\n    planted = 1",
        "with a:\n    def planted():\n        pass",
    ],
)  # fmt: skip
def test_a_name_defined_in_two_modules_is_found(planted):
    assert doubles({"tensorprimat.core.one": planted}) == {}
    twice = doubles({"tensorprimat.core.one": planted, "tensorprimat.logs.other": "def planted():\n    pass"})
    assert twice == {"planted": ["core.one", "logs.other"]}


def test_a_module_of_the_readers_has_both_functions_of_a_reader_or_none():
    names = {
        name: public_names(text) for name, text in package_texts().items() if name.startswith("tensorprimat.logs.")
    }
    assert {name for name in names if "read" in names[name]} == {name for name in names if "detect" in names[name]}


def lookups_by_name_alone(text):
    """Yield the lines that look a device up by its name alone, although a record with its memory is at hand."""
    for node in nodes(text):
        if isinstance(node, ast.Call) and len(node.args) + len(node.keywords) == 1:
            called = ast.unparse(node.func).rpartition(".")[2]
            if called == "find_gpu" and ast.unparse([*node.args, *(one.value for one in node.keywords)][0]).endswith(
                ".device_name"
            ):
                yield node.lineno


@in_each(sorted(PACKAGE.rglob("*.py")))
def test_a_device_is_looked_up_with_its_memory_which_tells_variants_of_one_name_apart(path):
    assert list(lookups_by_name_alone(path.read_text())) == []
