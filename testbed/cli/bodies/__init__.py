"""The bodies of commands: one function of the command's name, in a module of the name of its declaration."""
