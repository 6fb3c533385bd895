"""What works on this machine and what does not, tried out with a small model, as a signed file.

Needs no terminal library, so that a worker image can run it: `python -m tuner_job.doctor`.
"""
