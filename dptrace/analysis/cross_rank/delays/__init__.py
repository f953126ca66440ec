"""Late ranks: how late each arrived, where it lost its time, why, and what that cost the others."""
