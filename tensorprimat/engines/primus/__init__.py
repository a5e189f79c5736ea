"""The Primus engine: AMD's training from a checkout of Primus, its configuration and its launcher."""
