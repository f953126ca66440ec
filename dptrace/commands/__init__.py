"""One file per verb: arguments in, one library call, one view out."""
