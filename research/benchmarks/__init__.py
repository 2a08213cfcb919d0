"""What leanbayes costs: ``python -m research bench`` fills results/bench and writes the pages.

``networks`` and ``methods`` say what is measured; ``step``, ``prediction``, ``startup``, ``scale``
and ``distributed`` measure it in separate processes, ``page`` writes.
"""
