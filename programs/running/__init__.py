"""What runs inside of nodes and of the one process: acting, evaluating, saving."""
