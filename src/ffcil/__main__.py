"""Entry point of `ffcil` and `python -m ffcil`. It names missing packages without which no command can start."""

from __future__ import annotations


def main() -> None:
    try:
        from ffcil.cli import main as start
    except ImportError:
        from ffcil.commands.packages import missing_packages

        if not (missing := missing_packages()):
            raise
        raise SystemExit("\n".join(f"ffcil: {package.advice}" for package in missing)) from None
    start()


if __name__ == "__main__":
    main()
