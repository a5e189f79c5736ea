"""Hugging Face Trainer and what builds on it."""
