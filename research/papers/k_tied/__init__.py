"""The k-tied Normal distribution [k-tied]."""
