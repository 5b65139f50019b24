"""What commands do: a function of the name of each command, in a module of the name of its declaration."""
