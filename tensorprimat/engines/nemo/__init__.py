"""The NeMo engine: NVIDIA's recipes with NVIDIA's performance settings, and conversion of checkpoints."""
