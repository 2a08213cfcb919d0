"""What makes tables and pages of the papers' values, of recipes and of files of results."""
