"""One file per way to look: figures in, document out."""
