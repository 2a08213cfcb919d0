"""What is left of sparse networks, and how good they are without the rest."""
