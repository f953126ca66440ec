"""A run in a Panel application: ``panel serve app_panel.py --args RUN``, then open the address it prints."""

import sys

import panel as pn

import dptrace

pn.extension()
run = dptrace.open(sys.argv[1])
ranks = pn.widgets.MultiChoice(options=list(run.ranks), value=list(run.ranks))
chart = pn.bind(lambda chosen: dptrace.figure(run.select(ranks=chosen) if chosen else run), ranks)
pn.Column("# Where does a step's time go?", ranks, chart, sizing_mode="stretch_width").servable()
