1 / 0  # an agent module that cannot be imported
