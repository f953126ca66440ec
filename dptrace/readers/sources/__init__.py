"""Where trace bytes come from: files, archives, URLs, standard input, and the discovery of a run's files."""
