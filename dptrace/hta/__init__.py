"""Holistic Trace Analysis (HTA) on dptrace's reader, and HTA's definitions computed by dptrace."""
