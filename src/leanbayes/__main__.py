"""``python -m leanbayes``, and ``torchrun -m leanbayes``: the command."""

from leanbayes_cli import main

if __name__ == "__main__":
    main()
