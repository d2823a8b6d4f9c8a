"""Where the recorder is attached to torch and megatron-core: one file per kind of span, each installed and removed."""
