"""``python -m leanbayes``, and ``torchrun -m leanbayes``: the command."""

from leanbayes_cli import main

__all__: list[str] = []

if __name__ == "__main__":
    main()
