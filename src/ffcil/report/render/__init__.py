"""Markdown, LaTeX, figures and the page."""
