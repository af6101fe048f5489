"""From a model, prompts and a sampler to a trace on disk."""
