"""Records and arithmetic that every other subpackage uses; imports nothing else of the project."""
