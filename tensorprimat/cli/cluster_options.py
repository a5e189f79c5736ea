"""Options of the commands that can run on other machines with --executor."""

from __future__ import annotations

from typing import Annotated

import typer

from tensorprimat.cli import fact_options as facts

Account = Annotated[str | None, typer.Option(metavar="NAME", help="Slurm account to charge.")]
Partition = Annotated[str | None, typer.Option(metavar="NAME", help="Slurm partition.")]
TimeLimit = Annotated[
    str | None, typer.Option(metavar="LIMIT", help="Slurm time limit of a run.", show_default="01:00:00")
]
ContainerImage = Annotated[str | None, typer.Option(metavar="IMAGE", help="Container that the ranks start in.")]
ContainerMounts = Annotated[
    list[str] | None, typer.Option(metavar="SRC:DST", help="A folder for the container (repeatable).")
]
NodeGpu = Annotated[
    str | None,
    typer.Option(
        metavar="NAME", help=f"{facts.GPU} With --executor: GPU of each node, or cpu.", show_default="as this machine"
    ),
]
