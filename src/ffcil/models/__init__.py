"""Backbones and heads. They know nothing of methods."""
