"""``python -m gpuscaler``: the command line, where the console script is not on the path."""

from gpuscaler.cli import run

if __name__ == "__main__":
    run()
