"""The engines that run benchmarks: the registry of them, the choice of one for each model, and their programs."""
