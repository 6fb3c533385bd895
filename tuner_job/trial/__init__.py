"""One trial in one supervised child process, and the outcome that every way to die becomes."""
