"""The Gantt chart as static SVG: for slides, reports and papers, drawn without a browser."""
