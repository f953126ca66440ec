"""Building blocks of pictures that several views share: rows of bars, curves of memory."""
