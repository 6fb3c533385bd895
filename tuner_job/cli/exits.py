"""Exit codes of `trtfleet`. They are API; docs/cli.md lists them."""

from __future__ import annotations

from enum import IntEnum

from tuner_job.api.base import InputError, TrtfleetError


class Exit(IntEnum):
    """What the command's end means."""

    OK = 0
    USAGE = 2
    VERIFICATION_FAILED = 3
    REFUSED = 4  # a pointer does not allow the change
    NOT_CONFIRMED = 5  # the doctor could not see everything work
    BAD_INPUT = 64
    WRONG_DEVICE = 65
    STORE_UNUSABLE = 66  # also a full scratch folder: the same command may work later
    STOPPED = 67  # nothing is lost: the same command goes on
    BUSY = 68
    FAILED = 70


def exit_code(error: TrtfleetError) -> Exit:
    """The code of the first kind that the error is."""
    # Imported here, since only a failure needs all that can fail.
    from tuner_job.campaign.local import RunBusy, RunStopped
    from tuner_job.campaign.stages import WrongDevice
    from tuner_job.campaign.workspace import ScratchFull
    from tuner_job.store.attest import VerificationFailed
    from tuner_job.store.objects import StoreCorrupt, StoreFull, StoreNotConditional, StoreReadOnly, StoreUnavailable
    from tuner_job.store.pointers import PointerRefused

    codes: tuple[tuple[type[TrtfleetError], Exit], ...] = (
        (VerificationFailed, Exit.VERIFICATION_FAILED),
        (PointerRefused, Exit.REFUSED),
        (StoreNotConditional, Exit.BAD_INPUT),  # it will be no better later
        (StoreUnavailable, Exit.STORE_UNUSABLE),
        (StoreReadOnly, Exit.STORE_UNUSABLE),
        (StoreFull, Exit.STORE_UNUSABLE),
        (StoreCorrupt, Exit.STORE_UNUSABLE),
        (ScratchFull, Exit.STORE_UNUSABLE),
        (WrongDevice, Exit.WRONG_DEVICE),
        (RunStopped, Exit.STOPPED),
        (RunBusy, Exit.BUSY),
        (InputError, Exit.BAD_INPUT),
    )
    return next((code for kind, code in codes if isinstance(error, kind)), Exit.FAILED)
