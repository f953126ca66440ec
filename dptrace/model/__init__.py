"""Cost models of communication and scaling: formulas with their sources, without files or plots."""
