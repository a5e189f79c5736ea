"""The torch engine: training of every model with PyTorch and Lightning, by the same code on CUDA, ROCm and CPU."""
