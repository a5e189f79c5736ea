"""Records and arithmetic that every other room shares; imports nothing else of the project."""
