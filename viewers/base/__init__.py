"""Marks, renderers, palette, page shell and text formats that the pages share."""
