"""Why a job failed or hangs: the first rank that failed, the causes of errors, and where stuck ranks are."""
