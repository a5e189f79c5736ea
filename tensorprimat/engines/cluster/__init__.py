"""Training on other machines: executors of NeMo-Run, the process that follows a job, Slurm and containers."""
