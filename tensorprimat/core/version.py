"""The version of the package. It has a file of its own so that every subpackage can import it without a cycle."""

__version__ = "0.1.0"
