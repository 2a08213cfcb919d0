"""What the weight of the KL does, on three data sets."""
