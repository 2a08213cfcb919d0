"""The laboratory: real data, trained networks, tables. Needs ``pip install 'leanbayes[lab]'``."""
