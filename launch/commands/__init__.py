"""The subcommands of `distrl`, a file each; `launch/command_table.py` lists them."""
