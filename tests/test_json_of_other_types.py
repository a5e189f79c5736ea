"""JSON with a value of another type than its writer's is read or refused by every reader, never an internal error."""

import copy
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import preflights
import pytest
from each import in_each
from mlperf_journal import Journal
from test_huggingface_log import state
from test_levanter_log import opening
from test_levanter_log import rows as levanter_rows
from test_metrics_table import automodel
from test_mlperf_log import step_times
from test_passes import spec
from test_wandb_run import CALLS, CONFIG_FIELD, FILES, HISTORY_FIELD, RUN_FIELD, SETTINGS, items, message
from test_wrapped_text import ROWS as PRINTED
from test_wrapped_text import notebook

from tensorprimat import logs
from tensorprimat.core.errors import InputError, InternalError, NoFormatError, TensorPrimatError
from tensorprimat.mlperf import library as mlperf_library
from tensorprimat.storage import micro_result, preflight, store
from tensorprimat.storage.micro_result import MicroResult

HUGE = "a whole number of more digits than Python converts"
OTHERS = (
    *(None, True, 0, -1.5, 10**30, 10**400, HUGE, float("nan"), "", "2026", "\ud83d"),
    *([], [None], [[8]], {}, {"a": None}),
)
"""Values of every type, and numbers beyond every range."""
SOME = 3  # of them, at each kind of place
Place = tuple[str | int, ...]


@dataclass(frozen=True, kw_only=True)
class Written:
    """A file of JSON documents, in which one value is replaced."""

    format: str
    documents: Sequence[Any]
    file: Callable[[Sequence[Any]], str | bytes]
    name: str = "a.log"
    log: str | None = None
    """Text of the log if the documents are in another file of its folder."""


def in_lines(documents: Sequence[Any], before: str = "") -> str:
    return "".join(f"{before}{json.dumps(one)}\n" for one in documents)


def of_one(documents: Sequence[Any]) -> str:
    return json.dumps(documents[0], indent=2)


def run_file(documents: Sequence[Any]) -> bytes:
    settings, *calls = [one if isinstance(one, dict) else {"value": one} for one in documents]
    config = [message(CONFIG_FIELD, items(settings)), message(RUN_FIELD, message(4, items(settings)))]
    return FILES.run_file_of([*config, *(message(HISTORY_FIELD, items(call)) for call in calls)])


def levanter_records(documents: Sequence[Any]) -> str:
    return in_lines(documents, "I20260105 08:00:00 42 levanter.json_logger ")


def events(documents: Sequence[Any]) -> str:
    return in_lines(documents, ":::MLLOG ")


def parsed(text: str, before: str = "") -> list[Any]:
    return [json.loads(line.removeprefix(before)) for line in text.splitlines()]


def journal_lines() -> list[str]:
    journal = Journal(global_batch_size=16, max_sequence_length=128, submission_platform="2xNVIDIA GB200")
    journal.say("init_start")
    step_times(journal)
    return journal.lines


def levanter_documents() -> list[Any]:
    text = opening()
    facts = parsed(text.replace("I20260105 08:00:00 42 levanter.json_logger ", ""))
    calls = [(n, metrics) for n in range(4) for metrics in levanter_rows(n)]
    return [
        *facts,
        *({"tracker": "json_logger", "event": "log", "step": n, "metrics": metrics} for n, metrics in calls),
    ]


HISTORY = [{"_step": n, "_timestamp": 1.76e9 + 2 * n, "train/loss": 2.5, "tokens_per_sec": 9.5} for n in range(6)]
SUMMARY = {"_step": 9, "_runtime": 5.5, "throughput/tokens_per_sec": 99.5, "_wandb": {"runtime": 5}}
GOLDEN = {
    "lm loss": {"start_step": 0, "end_step": 20, "step_interval": 5, "values": {"0": 2.5, "5": 2.4, "10": 2.3}},
    "iteration-time": {"start_step": 0, "end_step": 20, "step_interval": 5, "values": ["nan", 7.6, 0.08, 0.09]},
}
SWIFT = [
    {"loss": 2.5, "grad_norm": 1.0, "learning_rate": 1e-5, "epoch": n / 10, "global_step/max_steps": f"{n}/9"}
    | {"elapsed_time": f"{n}m 3s", "train_speed(s/it)": 1.25, "memory(GiB)": 40.2}
    for n in range(1, 6)
]
SYSTEM = {"number_of_nodes": "2", "accelerators_per_node": 4, "accelerator_model_name": "NVIDIA H100"}
VALIDATION = {"step": 3, "epoch": 0, "timestamp": "2026-01-05T08:00:03.5", "val_loss": 2.5}
TABLE = [automodel(n) for n in range(1, 8)]
CELLS = json.loads(notebook(PRINTED[:5]))

WRITTEN = {
    "history in lines": Written(format="metrics", documents=HISTORY, file=in_lines),
    "history as a document": Written(format="metrics", documents=[HISTORY], file=of_one),
    "summary": Written(format="metrics", documents=[SUMMARY], file=of_one),
    "golden values": Written(format="metrics", documents=[GOLDEN], file=of_one),
    "Levanter": Written(format="metrics", documents=levanter_documents(), file=levanter_records),
    "Automodel": Written(format="metrics", documents=TABLE, file=in_lines),
    "Automodel's validation": Written(
        format="metrics", documents=[VALIDATION], file=in_lines, name="validation.jsonl", log=in_lines(TABLE)
    ),
    "run file": Written(format="wandb", documents=[SETTINGS, *CALLS[:5]], file=run_file),
    "trainer_state.json": Written(format="huggingface", documents=[json.loads(state())], file=of_one),
    "rows of ms-swift": Written(format="huggingface", documents=SWIFT, file=in_lines),
    "MLPerf": Written(format="mlperf", documents=parsed("\n".join(journal_lines()), ":::MLLOG "), file=events),
    "MLPerf's launcher": Written(
        format="mlperf",
        documents=[SYSTEM],
        file=lambda documents: "\n".join([f":::SYSJSON {json.dumps(documents[0])}", *journal_lines()]),
    ),
    "MLPerf's system": Written(
        format="mlperf",
        documents=[SYSTEM],
        file=of_one,
        name="../../systems/theia.json",
        log="\n".join(journal_lines()),
    ),
    "notebook": Written(format="maxtext", documents=[CELLS], file=lambda documents: json.dumps(documents[0], indent=1)),
    **{
        f"result {n}": Written(format="result", documents=[json.loads(text)], file=of_one)
        for n, text in enumerate(FILES.DOCUMENTS["result"], start=1)
    },
}


def places(value: Any, before: Place = ()) -> Iterator[Place]:
    """Yield the place of every value in a document; of a list, those of its last entry and the first of each kind."""
    if isinstance(value, dict):
        parts = list(value.items())
    else:
        parts = list(enumerate(value)) if isinstance(value, list) else []
        parts = list({kind(part): (key, part) for key, part in reversed(parts)}.values()) + parts[-1:]
    for key, part in parts:
        yield (*before, key)
        yield from places(part, (*before, key))


def kind(value: Any) -> tuple[Any, ...]:
    """Return a value that entries of a list share if they differ in numbers and texts alone."""
    return (type(value), *((*value, value.get("key")) if isinstance(value, dict) else ()))


def replaced(document: Any, place: Place, other: Any) -> Any:
    """Return the document with another value at a place."""
    document = copy.deepcopy(document)
    holder = document
    for key in place[:-1]:
        holder = holder[key]
    holder[place[-1]] = other
    return document


@pytest.mark.parametrize("least", [SOME, pytest.param(len(OTHERS), marks=pytest.mark.thorough)], ids=["some", "all"])
@pytest.mark.parametrize("name", WRITTEN)
def test_a_value_of_another_type_is_read_or_refused_and_fails_no_reader(tmp_path: Path, name: str, least: int) -> None:
    written = WRITTEN[name]
    folder = tmp_path / "results" / "theia" / "llama31_8b"
    folder.mkdir(parents=True)
    path, log = (folder / written.name).resolve(), folder / "a.log"
    path.parent.mkdir(exist_ok=True)
    if written.log is not None:
        log.write_text(written.log)
    for place, other in tried(written.documents, least):
        write(path, written.file(replaced(list(written.documents), place, other)))
        assert not isinstance(error_of(log, written.format), InternalError), (place, other)


def tried(documents: Sequence[Any], least: int = len(OTHERS)) -> list[tuple[Place, Any]]:
    """Return (place, value to put there) of the documents: at each kind of place so many values, or one at every place
    if it has more.

    The same code reads all places of a kind. The values of a kind begin where those of the one before end.
    """
    others = cycle(OTHERS)
    alike: dict[Place, list[Place]] = {}
    for place in dict.fromkeys(places(list(documents))):
        alike.setdefault(kind_of_place(documents, place), []).append(place)
    return [(place, next(others)) for group in alike.values() for place in islice(cycle(group), max(len(group), least))]


def kind_of_place(documents: Any, place: Place) -> Place:
    """Return a value that the places share which the same code reads: the place without numbers of entries.

    What the value of an MLPerf event means depends on its key.
    """
    found, value = list[str | int](), documents
    for key in place:
        found += [] if isinstance(value, list) else [key, str(value.get("key"))] if key == "value" else [key]
        value = value[key]
    return (*found, len(place))


def write(path: Path, content: str | bytes) -> None:
    raw = content if isinstance(content, bytes) else content.encode()
    path.unlink(missing_ok=True)  # ext4 writes the new text of a file that is emptied to the disk, which takes 2 ms
    path.write_bytes(raw.replace(json.dumps(HUGE).encode(), b"9" * 5000))


def error_of(log: Path, format: str) -> TensorPrimatError | None:
    """Return the error of reading a log, by its own format and, if it is recognised as none, by this one."""
    for named in (None, format):
        try:
            store.to_json(logs.read(log, format=named))
        except NoFormatError:
            continue
        except TensorPrimatError as error:
            return error
        return None
    return None


CELL = MicroResult(**spec().model_dump(exclude={"forward_only", "num_parameters"}), trial_times_ms=(10.0, 12.0))
LIBRARY = mlperf_library.bundled()
OWN = {
    "cell": (micro_result.load, [json.loads(CELL.model_dump_json())], of_one),
    "preflight": (preflight.load, [json.loads(preflights.made().model_dump_json())], of_one),
    "MLPerf library": (
        lambda path: mlperf_library.dump(mlperf_library.load(path)),
        parsed(mlperf_library.dump(replace(LIBRARY, entries=LIBRARY.entries[:3]))),
        in_lines,
    ),
}
"""File of this program → its reader, its documents, and the way in which it contains them."""


@in_each("name", OWN)
def test_a_value_of_another_type_in_a_file_of_this_program_is_read_or_refused(tmp_path: Path, name: str) -> None:
    read, documents, file = OWN[name]
    path = tmp_path / "a.json"
    for place, other in tried(documents):
        write(path, file(replaced(documents, place, other)))
        with suppress(InputError):
            read(path)
