"""The shell: short effects around the decisions of `core`, whoever calls them."""
