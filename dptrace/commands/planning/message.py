"""``dptrace predict --bytes``: what one message takes, by every collective and by every algorithm of an all-reduce."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dptrace.commands.shared.options import given_options
from dptrace.errors import UsageError

__all__ = ["predict_message"]

_USED = {"message_bytes", "gamma", "gpus", "gpus_per_node", "link", "links"}
_OUTPUT = {"run", "as_json", "output", "force", "verbosity"}


def predict_message(options: dict[str, Any], links: Path | None, size: float, gamma_ps: float | None) -> dict[str, Any]:
    """Return what the message takes over links at their nominal rates, or over measured ones.

    Raises:
        UsageError: an option describes a training, or there are fewer than two GPUs.
        DptraceError: the file of links has no fitted line.
    """
    from dptrace.commands.planning.measured_links import measured_gamma, with_measured_links
    from dptrace.model.planning.describe import Description
    from dptrace.model.training.communication import Network, message_costs, nominal_network

    for name in sorted(given_options() - _USED - _OUTPUT):
        raise UsageError(f"--{name.replace('_', '-')} describes a training; --bytes is one message.")
    found = Description(gpus=options["gpus"], gpus_per_node=options["gpus_per_node"], link=options["link"])
    gamma = gamma_ps * 1e-12 if gamma_ps is not None else None
    if links is not None:
        found = with_measured_links(found, links, "send_recv")
        gamma = measured_gamma(links) if gamma is None else gamma
    nominal = nominal_network(found.link, found.gpus_per_node)
    near, far = found.measured_within or nominal.within, found.measured_between or nominal.between
    return message_costs(Network(near, far, found.gpus_per_node), size, found.gpus, gamma or 0.0)
