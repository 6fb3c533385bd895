"""One HTML file that explains a run, from its records alone."""
