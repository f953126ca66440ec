"""From the description of a training, or a recording of one, to answers: what fits, how long a step takes."""
