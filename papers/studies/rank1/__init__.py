"""What rank-one factors and their rivals are worth on clean, damaged and foreign images."""
