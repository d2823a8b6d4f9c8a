"""Weights of Hugging Face as a checkpoint of the trainer, and back."""
