"""A run in an application of your own: ``bokeh serve app_bokeh.py --args RUN``, then open the address it prints."""

import sys

from bokeh.io import curdoc
from bokeh.layouts import column
from bokeh.models import Select

import dptrace

run = dptrace.open(sys.argv[1])
steps = run.steps().step_number.dropna().unique().tolist()
choice = Select(title="Step", value="all", options=["all", *map(str, steps)])
page = column(choice, dptrace.figure(run), sizing_mode="stretch_width")


def show_step(name, old, new):
    part = run if new == "all" else run.select(steps=(int(new), int(new)))
    page.children[1] = dptrace.figure(part)


choice.on_change("value", show_step)
curdoc().add_root(page)
