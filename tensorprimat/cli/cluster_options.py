"""Options of the commands that can run on other machines with --executor."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tensorprimat.cli.shared_options import typed_option

if TYPE_CHECKING:
    from tensorprimat.engines.cluster.executors import Cluster

CLUSTER_OPTIONS = (
    typed_option("account", str | None, "NAME", "Slurm account to charge."),
    typed_option("partition", str | None, "NAME", "Slurm partition."),
    typed_option("time", str | None, "LIMIT", "Slurm time limit of a run.", show_default="01:00:00"),
    typed_option("container_image", str | None, "IMAGE", "Container that the ranks start in."),
    typed_option("container_mounts", list[str] | None, "SRC:DST", "A folder for the container (repeatable)."),
)


def cluster_of(typed: Mapping[str, Any]) -> Cluster:
    """Return the cluster that the options of a command describe."""
    from tensorprimat.engines.cluster.executors import Cluster

    stated = {name: value for name, value in typed.items() if name in Cluster.model_fields and value is not None}
    return Cluster(**{**stated, "container_mounts": tuple(typed["container_mounts"] or ())})
