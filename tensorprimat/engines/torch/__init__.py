"""The torch engine: one PyTorch and Lightning training of every model on CUDA, ROCm and CPU."""
