"""Reader of Megatron-LM's logs and those of its forks: rows parsed from bytes, configuration, order of the steps."""
