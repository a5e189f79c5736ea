"""The version of the package. It has a file of its own so that every room can import it without a circle."""

__version__ = "0.1.0"
