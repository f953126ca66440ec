"""The processes that train: their accelerators and environment, their process group, and whom they end with."""
