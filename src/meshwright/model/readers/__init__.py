"""Readers of Hugging Face `config.json`, one small function a model type, by family."""
