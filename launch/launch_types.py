"""The names of launch types and terminals; importable without Launchpad."""

LOCAL_MP = "local_mp"
LAUNCH_TYPES = (LOCAL_MP, "local_mt", "test_mt")
LIVE = "live"
TERMINALS = ("current_terminal", "output_to_files", LIVE)
