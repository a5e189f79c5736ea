"""The nanoGPT family: nanoGPT, build-nanogpt, nanochat, modded-nanogpt, parameter-golf, llm.c and llama2.c."""
