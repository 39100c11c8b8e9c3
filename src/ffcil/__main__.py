"""Entry point of `ffcil` and `python -m ffcil`. A missing package is reported with the command that installs it."""


def main() -> None:
    try:
        from ffcil.cli import main as start

        start()
    except ImportError:
        from ffcil.commands.packages import missing_packages

        if not (missing := missing_packages()):
            raise
        raise SystemExit("\n".join(f"ffcil: {package.advice}" for package in missing)) from None


if __name__ == "__main__":
    main()
