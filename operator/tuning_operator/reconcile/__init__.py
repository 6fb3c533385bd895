"""One TuningJob at a time: gather what is, decide what to do and to say, act, write the status once."""
