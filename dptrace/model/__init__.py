"""Cost models of computation, communication and scaling: formulas with their sources, without files or plots."""
