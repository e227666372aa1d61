"""What a person sees of a program in progress."""
