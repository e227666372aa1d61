"""What commands that train have in common: flags, files of settings, the experiment."""
