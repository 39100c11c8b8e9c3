"""Output formats of a report: terminal, Markdown, CSV, LaTeX, JSON, figures and the page."""
