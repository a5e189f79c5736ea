"""Profiler traces of a training: the record, its readers, the ledger of a step, and the difference of two ledgers."""
