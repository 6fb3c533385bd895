"""Images whose processes see another time of day: a few lines of C before libc, in a layer on the real image."""

from __future__ import annotations

import dataclasses
import tempfile
from pathlib import Path

from rig.kube.images import Image, Target, buildah, image
from rig.kube.machine import call

SKEW_SECONDS = 600
"""S3 refuses requests that are signed more than 15 minutes off."""

SOURCE = """\
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>

/* Workers with an even index are as far behind as the others, and all else, are ahead. */
static time_t off(void) {
    const char *index = getenv("JOB_COMPLETION_INDEX");
    return index && atoi(index) % 2 == 0 ? -SKEW : SKEW;
}

int clock_gettime(clockid_t clock, struct timespec *at) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
    int code = real(clock, at);
    if (!code && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) at->tv_sec += off();
    return code;
}

int gettimeofday(struct timeval *restrict at, void *restrict zone) {
    struct timespec now;
    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &now)) return -1;
    at->tv_sec = now.tv_sec;
    at->tv_usec = now.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *at) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (at) *at = now.tv_sec;
    return now.tv_sec;
}
"""


def skewed(target: Target) -> Image:
    """The Dockerfile's target, with every process's clock ten minutes off."""
    real = image(target)
    tag = real.name.rpartition(":")[2]
    made = Image(f"localhost/trtfleet-{target}-skewed:{tag}", real.archive.with_name(f"skewed-{target}-{tag}.tar"))
    with tempfile.TemporaryDirectory(prefix="trtfleet-skew-") as name:
        folder = Path(name)
        (folder / "skew.c").write_text(SOURCE)
        call("gcc", "-shared", "-fPIC", "-O2", f"-DSKEW={SKEW_SECONDS}", "-o", folder / "skew.so", folder / "skew.c", "-ldl")
        (folder / "ld.so.preload").write_text("/usr/local/lib/skew.so\n")
        (folder / "Dockerfile").write_text(
            f"FROM {real.name}\n"
            "COPY --chmod=755 skew.so /usr/local/lib/skew.so\n"
            "COPY --chmod=644 ld.so.preload /etc/ld.so.preload\n"
        )
        aside = dataclasses.replace(made, archive=folder / "image.tar")
        buildah("build", "--format=oci", f"--tag={made.name}", f"--file={folder / 'Dockerfile'}", folder)
        buildah("push", made.name, f"docker-archive:{aside.archive}:{made.name}")
        aside.archive.replace(made.archive)
        buildah("rmi", made.name)
    return made
