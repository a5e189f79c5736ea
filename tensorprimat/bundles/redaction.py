"""Removal of names from the files of a bundle: hosts, users, folders, secrets, and variables that no figure needs.

Every name has one pseudonym in all files of a bundle, so that runs of one host stay runs of one host. Numbers and line
breaks stay as they are, so that readers find the same rows in the same lines.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from tensorprimat.machine.environment import speed_variables

REDACTED = "redacted"
SHORTEST_NAME = 3  # a shorter name is also a part of other words
NO_NAMES = frozenset((
    "root", "admin", "user", "users", "username", "host", "hostname", "localhost", "localdomain", "null", "none",
    "true", "false", "nan", "inf", "unknown", "node", "worker", "cpu", "gpu", "cuda", "rocm", "home", "data", "train",
    "training", "model", "llama", "qwen", "mistral", "torch", "nemo", "primus", "megatron",
))  # fmt: skip
"""Words that stand in the place of a name, or would change other text if they were replaced as names."""
_HOST = re.compile(
    r"""(?ix) ^([a-z][\w.-]+):\d+:\d+\s\[\d+\]\sNCCL                                          # a line of NCCL or RCCL
    | \b(?:hostname|nodename|slurmd_nodename|master_addr(?:ess)?)["']?\s*[=:]\s*["']?([a-z][\w.-]*\w)
    | \b(?:host|node)["']?\s*[=:]\s*["']?(?=[\w.-]*[\d.-])([a-z][\w.-]*\w)
    | \b([a-z][\w-]*(?:\.[\w-]+)*\.(?:local|internal|lan|cluster|corp|intra|localdomain))\b
    | tfevents\.\d+\.([a-z][\w.-]*?)\.\d+
    | ^[a-z_][\w.-]*@([a-z][\w-]+):                                                        # the prompt of a shell
    """
)
_USER = re.compile(
    r"""(?x) /(?:home|Users)/([\w.-]+)
    | \b(?:USER|LOGNAME|USERNAME|SUDO_USER)["']?\s*[=:]\s*["']?([\w.-]+)
    | (?i:"user(?:_?name)?")\s*:\s*"([\w.-]+)"
    | ^([a-z_][\w.-]*)@[a-z][\w-]+:
    """
)
_PART = r"""(?:[^\s"'\\/,;:|<>()\[\]{}=*?&]|\\u[0-9a-fA-F]{4})"""
_PATH = re.compile(rf"(?:(?<![\w/.:)\\])|(?<=\\[nrt]))\\?/{_PART}+\\?/(?:{_PART}+\\?/)*({_PART}*)")
_DRIVE = re.compile(rf"\b[A-Za-z]:(?:\\{{1,2}}{_PART}+)+\\{{1,2}}({_PART}*)")
_ADDRESS = re.compile(
    r"(?<![\w.=-])(?:(?:10|127|192\.168|172\.(?:1[6-9]|2\d|3[01]))(?:\.\d{1,3}){2,3}(?![\w.])"
    r"|\d{1,3}(?:\.\d{1,3}){3}(?=:\d{2,5}\b))"
)
_MAIL = re.compile(r"(?<![\w.+-])[\w.+-]{1,320}@[\w-]{1,63}(?:\.[\w-]{1,63}){1,9}")
_URL = re.compile(r"""\b([a-z][a-z+]{1,9}://)[^\s"'\\<>)\]]+""")
_SECRET = re.compile(
    r"""(?i)\b([\w-]*(?:api[_-]?key|secret|passw(?:or)?d|(?:access|auth)[_-]?token)["']?\s*[=:]\s*["']?)[^\s"',;}]+"""
    r"|\b(?:hf|ghp|gho|glpat|sk|wandb_v1)[_-][\w-]{16,}"
)
_VARIABLE = re.compile(
    r"""\b(?P<name>[A-Z][A-Z0-9_]{2,127})(?P<is>"\s*:\s*"|\s?=\s?["']?)(?P<value>(?<=")[^"\n]*(?=")|[^\s"',;]+)"""
)
_NUMBER = re.compile(r"[-+\d.,%eE]+|[Tt]rue|[Ff]alse|[Nn]one|null")


@dataclass
class Redactor:
    """Pseudonyms of the names in a bundle; `learn` collects the names, `apply` replaces them."""

    hosts: set[str] = field(default_factory=set)
    users: set[str] = field(default_factory=set)
    _names: re.Pattern[str] | None = None
    _pseudonyms: dict[str, str] = field(default_factory=dict)

    def learn(self, line: str) -> None:
        """Collect the names of hosts and users that a line states."""
        for pattern, names in ((_HOST, self.hosts), (_USER, self.users)):
            names.update(name for match in pattern.finditer(line) for name in match.groups() if _is_name(name))

    def learn_names(self, *, hosts: Iterable[str | None] = (), users: Iterable[str | None] = ()) -> None:
        """Add names that are known from elsewhere."""
        self.hosts.update(name for name in hosts if name and _is_name(name))
        self.users.update(name for name in users if name and _is_name(name))

    def settled(self) -> Redactor:
        """Return this with a pseudonym for every name. A host has one, with and without its domain."""
        short = sorted({name.partition(".")[0] for name in self.hosts})
        numbers = {name: f"host-{number}" for number, name in enumerate(short, 1)}
        self._pseudonyms = {name: f"user-{number}" for number, name in enumerate(sorted(self.users - self.hosts), 1)}
        self._pseudonyms |= {name: numbers[name.partition(".")[0]] for name in self.hosts}
        self._pseudonyms |= {name: number for name, number in numbers.items() if _is_name(name)}
        found = "|".join(map(re.escape, sorted(self._pseudonyms, key=lambda name: (-len(name), name))))
        self._names = re.compile(rf"(?<![A-Za-z0-9])(?:{found})(?![A-Za-z0-9])") if found else None
        return self

    def apply(self, line: str) -> tuple[str, int]:
        """Return a line without names, and the number of places that were replaced."""
        count = 0
        for pattern, by in (
            (_SECRET, lambda match: f"{match[1] or ''}{REDACTED}"),
            (_VARIABLE, _value),
            (_URL, lambda match: f"{match[1]}{REDACTED}"),
            (_MAIL, lambda _: f"{REDACTED}@{REDACTED}"),
            (_PATH, lambda match: f"/{REDACTED}/{match[1]}"),
            (_DRIVE, lambda match: f"/{REDACTED}/{match[1]}"),
            (_ADDRESS, lambda _: REDACTED),
            (self._names, lambda match: self._pseudonyms[match[0]]),
        ):
            if pattern is not None:
                before = line
                line, number = pattern.subn(by, line)
                count += number * (line != before)
        return line, count


def _is_name(name: str | None) -> bool:
    return name is not None and len(name) >= SHORTEST_NAME and name.lower() not in NO_NAMES and not name.isdigit()


def _value(match: re.Match[str]) -> str:
    """Return an assignment without its value, unless the variable changes speed or its value is a number."""
    if speed_variables({match["name"]: match["value"]}) or _NUMBER.fullmatch(match["value"]):
        return match[0]
    return f"{match['name']}{match['is']}{REDACTED}"
