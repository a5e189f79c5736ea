"""Arguments that a training hands to its logger: settings, the model's name, the device."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any

from tensorprimat.core import devices as vendors
from tensorprimat.core.names import known_model
from tensorprimat.logs.fields import whole
from tensorprimat.logs.format import Reading
from tensorprimat.logs.metric_names import ARGUMENTS
from tensorprimat.logs.paths import platform_in_path

MODEL_ARGUMENTS = (
    *("model_name", "model_name_or_path", "pretrained_model_name_or_path", "model", "exp_name", "experiment_name"),
    *("tokenizer_model", "tokenizer_name_or_path", "_name_or_path"),
)
"""Arguments that may name the model, in the order in which they are believed; only a known model's name counts."""
_PARAMETERS = "model/num_parameters"  # by the Hugging Face Trainer
DEVICE_ARGUMENTS = ("gpu", "gpu_type", "gpu_name", "gpu_model", "device_name", "platform", "hardware", "vendor")
"""Arguments that may name the vendor in one word; `device: cuda` does not, it is PyTorch's word on ROCm too."""
MOST_TEXTS = 10_000  # settings


def add_texts(items: Iterable[tuple[str, Any]], texts: dict[str, str]) -> None:
    """Add settings to texts by the last part of their names, sections included; of equal names the first counts."""
    waiting, seen = deque(items), set[int]()
    while waiting and len(texts) < MOST_TEXTS:
        name, value = waiting.popleft()
        if isinstance(value, dict):
            if id(value) not in seen:  # aliases of YAML may repeat a section without end
                seen.add(id(value))
                waiting.extend(value.items())
        elif isinstance(value, str | int | float) and not isinstance(value, bool):
            texts.setdefault(str(name).split(".")[-1], str(value))


def configure(reading: Reading, texts: Mapping[str, str], *, of: str) -> None:
    """Take settings, the model and the device from arguments by name. of: name of their source."""
    config = reading.training_config
    for name, field_name in ARGUMENTS.items():
        if value := whole(texts.get(name)):
            config[field_name] = value
    if parameters := whole(texts.get(_PARAMETERS)):
        reading.model.setdefault("parameters", parameters)
    for name in MODEL_ARGUMENTS:
        if (spelled := texts.get(name)) and len(spelled) < 200 and (model := known_model(spelled)):
            reading.model["name"] = model
            break
    for name, text in texts.items():
        device = vendors.find_name(text)
        platform = vendors.platform_of(device) or (platform_in_path((text,)) if name in DEVICE_ARGUMENTS else None)
        if platform is not None:
            reading.platform = platform
            reading.assumed["platform"] = f"argument {name} of {of}"
            if device is not None:
                reading.gpu_info["device_name"] = device
            break
