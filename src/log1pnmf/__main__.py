"""``python -m log1pnmf`` is the command line."""

import sys

from log1pnmf.cli import main

if __name__ == "__main__":
    sys.exit(main())
