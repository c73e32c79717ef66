"""`python -m halfstep.cli` is the `halfstep` command."""

import sys

from halfstep.cli import main

if __name__ == "__main__":
    sys.exit(main())
