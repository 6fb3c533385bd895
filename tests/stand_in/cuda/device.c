#define _GNU_SOURCE
#include "device.h"

#include <ctype.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_LINES = 1024, LONGEST = 256 };

static struct { char name[LONGEST], value[LONGEST]; unsigned long calls; } lines[MOST_LINES];
static size_t count;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_mutex_t counting = PTHREAD_MUTEX_INITIALIZER;

static char *trimmed(char *text) {
    while (isspace((unsigned char)*text)) text++;
    for (char *end = text + strlen(text); end > text && isspace((unsigned char)end[-1]);) *--end = 0;
    return text;
}

static void load(void) {
    Dl_info self;
    char path[4096], line[2 * LONGEST];
    if (!dladdr((void *)fact, &self)) return;
    snprintf(path, sizeof path, "%s", self.dli_fname);
    char *slash = strrchr(path, '/');
    snprintf(slash ? slash + 1 : path, sizeof path - (slash ? slash + 1 - path : 0), "device.txt");
    FILE *file = fopen(path, "r");
    if (!file) return;
    while (count < MOST_LINES && fgets(line, sizeof line, file)) {
        char *value = strchr(line, '=');
        if (line[0] == '#' || !value) continue;
        *value++ = 0;
        snprintf(lines[count].name, LONGEST, "%s", trimmed(line));
        snprintf(lines[count].value, LONGEST, "%s", trimmed(value));
        count++;
    }
    fclose(file);
}

const char *each(const char *name, size_t i) {
    pthread_once(&once, load);
    for (size_t k = 0; k < count; k++)
        if (!strcmp(lines[k].name, name) && i-- == 0) return lines[k].value;
    return NULL;
}

const char *fact(const char *name, const char *otherwise) {
    const char *value = each(name, 0);
    return value ? value : otherwise;
}

unsigned long long number(const char *name, unsigned long long otherwise) {
    const char *value = each(name, 0);
    return value ? strtoull(value, NULL, 0) : otherwise;
}

int scripted(const char *function) {
    int result = 0;
    pthread_once(&once, load);
    pthread_mutex_lock(&counting);
    for (size_t k = 0; k < count; k++) {
        char name[LONGEST];
        int code = 0;
        unsigned long from = 0;
        if (strcmp(lines[k].name, "fail") || sscanf(lines[k].value, "%255s %d %lu", name, &code, &from) < 2) continue;
        if (!strcmp(name, function) && lines[k].calls++ >= from) result = code;
    }
    pthread_mutex_unlock(&counting);
    return result;
}
