"""A file per node group: what the node runs, and the function that adds it to a program.

A node's constructor runs in the node. Other nodes call its public methods.
"""
