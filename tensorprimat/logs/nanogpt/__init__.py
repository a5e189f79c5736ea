"""The nanoGPT family: nanoGPT, build-nanogpt, nanochat, modded-nanogpt, parameter-golf and llm.c."""
