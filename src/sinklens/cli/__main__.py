"""`python -m sinklens.cli`: the program, where it is not installed."""

from sinklens.cli import main

if __name__ == "__main__":
    main()
