"""`distrl sweep`: many trials of one experiment, with other settings and seeds each."""
