/* Stops a process at its nth step: loaded before libc, it counts the calls that change a file of one
 * folder, or that send to a socket, whoever makes them (the interpreter, SQLite, Arrow, gRPC), and
 * kills the process there or lets the call fail. See faults.py.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

enum { COUNT, KILL_BEFORE, KILL_AFTER, KILL_TORN, FAIL_ONCE, FAIL_FROM };

static char folder[4096];
static volatile int armed, mode, sends, failure;
static volatile long nth, seen;

/* What `folder_` holds (or, if it is null, what sockets send) is counted from now on. */
void faults_arm(const char *folder_, int mode_, long nth_, int failure_) {
    sends = folder_ == NULL;
    strncpy(folder, sends ? "" : folder_, sizeof folder - 1);
    mode = mode_, nth = nth_, failure = failure_, seen = 0;
    armed = 1;
}

long faults_seen(void) { return seen; }

static void die(void) {
    kill(getpid(), SIGKILL);
    for (;;) pause();
}

static int inside(const char *path) { return !strncmp(path, folder, strlen(folder)); }

static int link_inside(const char *link, const char *name) {
    char path[8192];
    ssize_t size = readlink(link, path, 4095);
    if (size < 0) return 0;
    path[size] = 0;
    if (name) strncat(strcat(path, "/"), name, sizeof path - size - 2);
    return inside(path);
}

static int by_name(int directory, const char *name) {
    char link[64];
    if (!armed || sends || !name) return 0;
    if (name[0] == '/') return inside(name);
    if (directory == AT_FDCWD) return link_inside("/proc/self/cwd", name);
    snprintf(link, sizeof link, "/proc/self/fd/%d", directory);
    return link_inside(link, name);
}

static int by_file(int file) {
    char link[64];
    if (!armed || sends) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    return link_inside(link, NULL);
}

/* Counts one call; returns what is to happen: COUNT for nothing. A full or broken disk still lets
 * files be removed; a read-only one does not. */
static int step(int counts, int removes) {
    if (!counts) return COUNT;
    long now = __sync_add_and_fetch(&seen, 1);
    if (mode == FAIL_FROM ? now >= nth : now == nth) {
        if (mode == KILL_BEFORE) die();
        if (mode >= FAIL_ONCE && removes && failure != EROFS) return COUNT;
        return mode;
    }
    return COUNT;
}

#define REAL(name) static __typeof__(name) *real; if (!real) real = dlsym(RTLD_NEXT, #name)
#define DO(counts, call) DO_(counts, 0, call)
#define REMOVE(counts, call) DO_(counts, 1, call)
#define DO_(counts, removes, call)                                             \
    int what = step(counts, removes);                                          \
    if (what >= FAIL_ONCE) { errno = failure; return -1; }                     \
    long result = (long)(call);                                                \
    if (what == KILL_AFTER || what == KILL_TORN) die();                        \
    return result

#define OPEN(name)                                                             \
    int name(const char *path, int flags, ...) {                               \
        va_list more; va_start(more, flags);                                   \
        mode_t rights = va_arg(more, mode_t); va_end(more);                    \
        REAL(name);                                                            \
        DO((flags & (O_CREAT | O_TRUNC)) && by_name(AT_FDCWD, path), real(path, flags, rights)); }
OPEN(open)
OPEN(open64)

#define OPENAT(name)                                                           \
    int name(int directory, const char *path, int flags, ...) {                \
        va_list more; va_start(more, flags);                                   \
        mode_t rights = va_arg(more, mode_t); va_end(more);                    \
        REAL(name);                                                            \
        DO((flags & (O_CREAT | O_TRUNC)) && by_name(directory, path),          \
           real(directory, path, flags, rights)); }
OPENAT(openat)
OPENAT(openat64)

/* A torn write leaves half of its bytes; so does one that finds the disk full. */
#define WRITE(name, counts, half, whole)                                       \
        REAL(name);                                                            \
        int what = step(counts, 0);                                            \
        if (what >= FAIL_ONCE) {                                               \
            if (failure == ENOSPC && size > 1) { if (half < 0) return -1; }    \
            errno = failure; return -1; }                                      \
        if (what == KILL_TORN && size > 1) { if (half >= 0) die(); return -1; } \
        long result = (long)(whole);                                           \
        if (what != COUNT) die();                                              \
        return result;
ssize_t write(int file, const void *data, size_t size) {
    WRITE(write, by_file(file), real(file, data, size / 2), real(file, data, size)) }
ssize_t pwrite(int file, const void *data, size_t size, off_t at) {
    WRITE(pwrite, by_file(file), real(file, data, size / 2, at), real(file, data, size, at)) }
ssize_t pwrite64(int file, const void *data, size_t size, off64_t at) {
    WRITE(pwrite64, by_file(file), real(file, data, size / 2, at), real(file, data, size, at)) }

ssize_t writev(int file, const struct iovec *parts, int count) {
    REAL(writev); DO(by_file(file), real(file, parts, count)); }
int fsync(int file) { REAL(fsync); DO(by_file(file), real(file)); }
int fdatasync(int file) { REAL(fdatasync); DO(by_file(file), real(file)); }
int ftruncate(int file, off_t size) { REAL(ftruncate); DO(by_file(file), real(file, size)); }
int ftruncate64(int file, off64_t size) { REAL(ftruncate64); DO(by_file(file), real(file, size)); }
int rename(const char *old, const char *name) {
    REAL(rename); DO(by_name(AT_FDCWD, name), real(old, name)); }
int renameat(int from, const char *old, int to, const char *name) {
    REAL(renameat); DO(by_name(to, name), real(from, old, to, name)); }
int mkdir(const char *name, mode_t rights) {
    REAL(mkdir); DO(by_name(AT_FDCWD, name), real(name, rights)); }
int mkdirat(int directory, const char *name, mode_t rights) {
    REAL(mkdirat); DO(by_name(directory, name), real(directory, name, rights)); }
int rmdir(const char *name) { REAL(rmdir); REMOVE(by_name(AT_FDCWD, name), real(name)); }
int unlink(const char *name) { REAL(unlink); REMOVE(by_name(AT_FDCWD, name), real(name)); }
int unlinkat(int directory, const char *name, int flags) {
    REAL(unlinkat); REMOVE(by_name(directory, name), real(directory, name, flags)); }

ssize_t sendmsg(int socket, const struct msghdr *message, int flags) {
    REAL(sendmsg); DO(armed && sends, real(socket, message, flags)); }
