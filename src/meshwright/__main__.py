"""`python -m meshwright` is the command line."""

from meshwright.cli.main import main

if __name__ == "__main__":
    main()
