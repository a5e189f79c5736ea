"""Removal of names from the files of a bundle: hosts, users, folders, secrets, and variables that no figure needs.

Every name has one pseudonym in all files of a bundle, so that runs of one host stay runs of one host. Numbers and line
breaks stay as they are, so that readers find the same rows in the same lines.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
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
    | \b(?:hostname|nodename|slurmd_nodename|master[_-]addr(?:ess)?)["']?\s*[=:]\s*["']?([a-z][\w.-]*\w)
    | \b(?:hostname|master[_-]addr(?:ess)?|ssh|on\snode)\s+(?=[a-z_.-]*\d)([a-z][\w.-]*\w)
    | \b(?:srun|slurmstepd|prterun|mpirun):\serror:\s(?=[\w.-]*\d)([a-z][\w.-]*\w):
    | \bON\s(?=[a-z_.-]*\d)([a-z][\w.-]*\w)\sCANCELLED\b
    | \b(?:host|node)["']?\s*[=:]\s*["']?(?=[\w.-]*[\d.-])([a-z][\w.-]*\w)
    | \b([a-z][\w-]{0,62}(?:\.[\w-]{1,63}){0,8}\.(?:local|internal|lan|cluster|corp|intra|localdomain|edu|gov))\b
    | \b(ip-\d+-\d+-\d+-\d+)\b                                                            # a name of AWS
    | tfevents\.\d+\.([a-z][\w.-]*?)\.\d+
    | ^[a-z_][\w.-]*@([a-z][\w-]+):                                                        # the prompt of a shell
    """
)
_HOST_LIST = re.compile(r"""(?:NODELIST|HOSTS|host_?list|node_?list)["']?\s*[=:]\s*["']?([\w.,\[\]-]+)(?!\S*=)""")
_HOSTS_OF_LIST = re.compile(r"([A-Za-z][\w.-]*)(?:\[([\d,-]+)\])?")  # as Slurm writes them: gpu[01-03,7],login1
_MOST_HOSTS = 10_000
_USER = re.compile(
    r"""(?x) /(?:home|[Uu]sers?)/([\w.-]+)
    | ~([a-z_][\w.-]*)/
    | \buid=\d+\(([\w.-]+)\)
    | \b(?i:logged\sin\sas):?\s([\w.-]+)
    | (?:--(?i:user(?:name)?)\s|(?i:\buser(?:_?name)?)=)["']?([A-Za-z][\w.-]*)
    | ^\s*(?i:user(?:_?name)?):\s["']?([A-Za-z][\w.-]*)["']?\s*$
    | \b(?:USER|LOGNAME|USERNAME|SUDO_USER)["']?\s*[=:]\s*["']?([\w.-]+)
    | (?i:"user(?:_?name)?")\s*:\s*"([\w.-]+)"
    | ^([a-z_][\w.-]*)@[a-z][\w-]+:
    """
)
_PART = r"""(?:[^\s"'\\/,;:|<>()\[\]{}=*?&]|\\u[0-9a-fA-F]{4})"""
_QUOTED_PATH = re.compile(r"""(?<=["'])/(?:[^"'\\/\n=]+/)+((?:(?!\ [-/])[^"'\\/\n=])*)(?=\\?["'])""")  # may have spaces
_PATH = re.compile(rf"(?:(?<![\w/.:)\\])|(?<=\\[nrt]))\\?/{_PART}+\\?/(?:{_PART}+\\?/)*({_PART}*)")
_DRIVE = re.compile(rf"\b[A-Za-z]:(?:\\{{1,2}}{_PART}+)+\\{{1,2}}({_PART}*)")
_ADDRESS = re.compile(
    r"(?<![\w.=-])(?:(?:10|127|192\.168|172\.(?:1[6-9]|2\d|3[01]))(?:\.\d{1,3}){2,3}(?![\w.])"
    r"|\d{1,3}(?:\.\d{1,3}){3}(?=:\d{2,5}\b))"
    r"|\b(?:fe80|f[cd][0-9a-f]{2}|2[0-9a-f]{3})(?:(?::[0-9a-f]{1,4}){7}|(?::[0-9a-f]{1,4}){0,5}::[0-9a-f:]*)"
    r"|\b(?:[0-9a-f]{2}:){5}[0-9a-f]{2}\b"
)
_STATED_ADDRESS = re.compile(
    r"""\b(?i:ip|[\w-]{0,32}addr(?:ess)?|host(?:name)?|server)["']?(?:\s?[=:]\s?|\s)["']?(\d{1,3}(?:\.\d{1,3}){3})\b"""
)
_MAIL = re.compile(r"(?<![\w.+-])[\w.+-]{1,320}@[\w-]{1,63}(?:\.[\w-]{1,63}){1,9}")
_URL = re.compile(r"""\b([a-z][a-z\d+]{1,9}://)[^\s"'\\<>)\]]+""")
_SECRET = re.compile(
    r"""(?i)(?:\b|(?=--))([\w-]{0,64}(?:api[_-]?key|secret|passw(?:or)?d|(?:access|auth)[_-]?token|access[_-]?key|wandb[_-]?key)"""
    r"""[\w-]{0,16}["']?\s*[=:]\s*["']?|--[\w-]{0,64}(?:key|passw(?:or)?d|token)[\s=]+(?![\d.]+\b)"""
    r"""|\bpassw(?:or)?d\s|\bbearer\s|\bwandb\slogin\s(?:--\w+\s)*(?=\w{20})"""
    r"""|\b[\w-]{0,64}token["']?(?:\s*[=:]\s*|\s)["']?(?=[a-z_-]*\d)(?=\d*[a-z_-])(?=[\w-]{8}))[^\s"',;}]+"""
    r"|\b(?:(?:hf|gh[opsu]|github_pat|glpat|sk|wandb_v1|xox[a-z])[_-][\w-]{16,}|AKIA[0-9A-Z]{16}\b|eyJ[\w-]{10,}\.[\w.-]+)"
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
    addresses: set[str] = field(default_factory=set)
    _names: re.Pattern[str] | None = None
    _pseudonyms: dict[str, str] = field(default_factory=dict)

    def learn(self, line: str) -> None:
        """Collect the names of hosts and users that a line states."""
        for pattern, names in ((_HOST, self.hosts), (_USER, self.users)):
            names.update(name for match in pattern.finditer(line) for name in match.groups() if _is_name(name))
        self.addresses.update(_STATED_ADDRESS.findall(line))
        for match in _HOST_LIST.finditer(line):
            self.hosts.update(name for name in _hosts_of_list(match[1]) if _is_name(name))

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
        self._pseudonyms |= dict.fromkeys(self.addresses, REDACTED)
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
            (_QUOTED_PATH, lambda match: f"/{REDACTED}/{match[1]}"),
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


def _hosts_of_list(text: str) -> Iterator[str]:
    """Yield the hosts of a list, such as gpu01, gpu02 and login1 of gpu[01-02],login1."""
    for base, numbers in _HOSTS_OF_LIST.findall(text):
        for first, last in re.findall(r"(\d+)(?:-(\d+))?", numbers):
            for number in range(int(first), min(int(last or first), int(first) + _MOST_HOSTS) + 1):
                yield f"{base}{number:0{len(first)}}"
        if not numbers:
            yield base


def _is_name(name: str | None) -> bool:
    return name is not None and len(name) >= SHORTEST_NAME and name.lower() not in NO_NAMES and not name.isdigit()


def _value(match: re.Match[str]) -> str:
    """Return an assignment without its value, unless the variable changes speed or its value is a number."""
    if speed_variables({match["name"]: match["value"]}) or _NUMBER.fullmatch(match["value"]):
        return match[0]
    return f"{match['name']}{match['is']}{REDACTED}"
