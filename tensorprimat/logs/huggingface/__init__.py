"""Hugging Face Trainer and the trainers built on it."""
