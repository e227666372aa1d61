"""`distrl graph`: the program of an experiment as a picture."""
