"""Which way to train pays off for a described training, by the documents' rules and by the model of a step."""
