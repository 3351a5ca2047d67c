"""``python -m gpuscaler``: the command line, where the console script is not on the path."""

import gpuscaler.cli

if __name__ == "__main__":
    gpuscaler.cli.run()
