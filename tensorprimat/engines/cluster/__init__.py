"""Training through NeMo-Run: its executors, the process that follows a job, Slurm and containers."""
