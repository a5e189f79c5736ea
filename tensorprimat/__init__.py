"""TensorPrimat: how fast, how efficiently and at what cost an accelerator trains a language model, with evidence."""

__version__ = "0.1.0"
