"""Where standard deviations start, and how a network is trained: what is fast, and what is safe."""
