"""The nanoGPT family: nanoGPT, build-nanogpt, nanochat, modded-nanogpt and llm.c."""
