"""What a trained variance network knows, and where [variance, sections 5 to 7, appendices C, D]."""
