"""CIFAR-10 from its files, in the binary and in the Python form; imports no torch and runs nothing in a pickle."""
