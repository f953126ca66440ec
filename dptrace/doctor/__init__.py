"""What ``dptrace doctor`` finds: the machine's facts, and a recording that it makes and checks."""
