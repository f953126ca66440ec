"""One file for each mode of parallel training, to be read and to be run on its own."""
