"""Auto-encoders of the matrix-normal paper, Table 3."""
