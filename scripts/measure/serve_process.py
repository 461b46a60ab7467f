def Server(): pass
def print_table(): pass
