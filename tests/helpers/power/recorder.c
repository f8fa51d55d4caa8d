/* Records what a process does to the files below a folder, and in which order: for LD_PRELOAD.

   RECORDER_ROOT is the folder, RECORDER_LOG the file that gets the records, which cuts.py reads. A
   record is written after its call; that of a call that failed is a '-'. One call is made at a time. With RECORDER_FAIL=N,
   call number N, from 1, fails with RECORDER_ERRNO; with RECORDER_FULL too, so does each later call
   that needs space. With RECORDER_PAUSE=N, the process makes the file RECORDER_GATE.reached before
   call number N, and waits for the file RECORDER_GATE.go. RECORDER_KINDS names the kinds of calls
   that count, by the letters of cuts.py and these: o(pen to read), g(et),
   i: status, x: close of a file to
   write, f(lock). With RECORDER_LOSE, no lock keeps anybody out. The variables are
   read when a process first calls, so that a child of a waiting process can have its own. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#define REAL(type, name, ...) \
    static type (*real)(__VA_ARGS__); \
    if (!real) real = (type(*)(__VA_ARGS__))dlsym(RTLD_NEXT, name)

static char root[PATH_MAX];
static size_t root_length;
static int log_descriptor = -1;
static pthread_mutex_t one = PTHREAD_MUTEX_INITIALIZER;

static long number, fail_at, full, pause_at, lose;
static int fail_with;
static const char *kinds, *gate;

static long setting(const char *name) {
    const char *value = getenv(name);
    return value ? atol(value) : 0;
}

static void begin(void) {
    const char *folder = getenv("RECORDER_ROOT"), *log = getenv("RECORDER_LOG");
    if (log_descriptor >= 0 || !folder || !log) return;
    REAL(int, "open", const char *, int, ...);
    int descriptor = real(log, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
    snprintf(root, sizeof root, "%s/", folder);
    root_length = strlen(root);
    fail_at = setting("RECORDER_FAIL");
    fail_with = setting("RECORDER_ERRNO");
    full = setting("RECORDER_FULL");
    pause_at = setting("RECORDER_PAUSE");
    lose = setting("RECORDER_LOSE");
    gate = getenv("RECORDER_GATE") ? strdup(getenv("RECORDER_GATE")) : NULL;
    kinds = strdup(getenv("RECORDER_KINDS") ? getenv("RECORDER_KINDS") : "ctwsrudmly");
    /* A high number, which no program takes for one of its own. */
    log_descriptor = fcntl(descriptor, F_DUPFD_CLOEXEC, 900);
    close(descriptor);
}

static void wait_at_gate(void) {
    REAL(int, "open", const char *, int, ...);
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s.reached", gate);
    int descriptor = real(path, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0600);
    if (descriptor < 0) return; /* another process of the same command was there */
    syscall(SYS_close, descriptor);
    snprintf(path, sizeof path, "%s.go", gate);
    while (syscall(SYS_faccessat, AT_FDCWD, path, F_OK)) usleep(1000);
}

/* Whether the next call, of this kind, is to fail. */
static int fails(char kind) {
    if (!strchr(kinds, kind)) return 0;
    number++;
    if (pause_at && number == pause_at) wait_at_gate();
    int chosen = number == fail_at || (full && number > fail_at && strchr("cwml", kind));
    if (!fail_at || !chosen || (full && !strchr("cwml", kind))) return 0;
    errno = fail_with;
    return 1;
}

static void record(char, const char *, const char *, uint64_t, const struct iovec *, int, uint64_t);

/* The path of a file that a call names, from the root folder; NULL if it lies elsewhere. */
static const char *inside(char *whole) {
    begin();
    if (log_descriptor < 0) return NULL;
    char trailed[PATH_MAX + 2];
    snprintf(trailed, sizeof trailed, "%s/", whole);
    return strncmp(trailed, root, root_length) ? NULL : whole;
}

static const char *named(int folder, const char *path, char *whole) {
    char start[PATH_MAX] = "", link[64];
    if (!path) return NULL;
    if (path[0] != '/') {
        if (folder == AT_FDCWD) {
            if (!getcwd(start, sizeof start)) return NULL;
        } else {
            snprintf(link, sizeof link, "/proc/self/fd/%d", folder);
            ssize_t size = readlink(link, start, sizeof start - 1);
            if (size < 0) return NULL;
            start[size] = 0;
        }
        snprintf(whole, PATH_MAX, "%s/%s", start, path);
    } else {
        snprintf(whole, PATH_MAX, "%s", path);
    }
    return inside(whole);
}

/* The path of an open file or folder as it is named now. */
static const char *opened(int descriptor, char *whole) {
    char link[64];
    begin();
    if (log_descriptor < 0 || descriptor == log_descriptor) return NULL;
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    ssize_t size = readlink(link, whole, PATH_MAX - 1);
    if (size < 0) return NULL;
    whole[size] = 0;
    return inside(whole);
}

static void record(char kind, const char *path, const char *other, uint64_t place,
                   const struct iovec *parts, int count, uint64_t size) {
    int saved = errno;
    REAL(ssize_t, "writev", int, const struct iovec *, int);
    struct iovec all[64];
    char head[256];
    int length = snprintf(head, sizeof head, "%c %zu %zu %llu %llu\n", kind, strlen(path),
                          strlen(other), (unsigned long long)place, (unsigned long long)size);
    all[0] = (struct iovec){head, length};
    all[1] = (struct iovec){(void *)path, strlen(path)};
    all[2] = (struct iovec){(void *)other, strlen(other)};
    uint64_t left = size;
    int used = 3;
    for (int i = 0; i < count && left && used < 64; i++) {
        size_t taken = parts[i].iov_len < left ? parts[i].iov_len : left;
        all[used++] = (struct iovec){parts[i].iov_base, taken};
        left -= taken;
    }
    if (left || real(log_descriptor, all, used) < 0) abort();
    errno = saved;
}

static void record_write(int descriptor, const char *path, off_t place, const struct iovec *parts,
                         int count, ssize_t written) {
    record(written > 0 ? 'w' : '-', path, "", place, parts, count, written > 0 ? written : 0);
}

static off_t place_of(int descriptor) {
    int flags = fcntl(descriptor, F_GETFL);
    struct stat status;
    if (flags & O_APPEND) return fstat(descriptor, &status) ? 0 : status.st_size;
    return lseek(descriptor, 0, SEEK_CUR);
}

/* Whether a call that reads is to fail. */
static int fails_read(char kind, int folder, const char *path) {
    char whole[PATH_MAX];
    begin();
    if (log_descriptor < 0 || !strchr(kinds, kind)) return 0;
    const char *known = path ? named(folder, path, whole) : opened(folder, whole);
    if (!known) return 0;
    pthread_mutex_lock(&one);
    int failed = fails(kind);
    record(failed ? '-' : kind, known, "", 0, NULL, 0, 0);
    pthread_mutex_unlock(&one);
    return failed;
}

static int open_any(int folder, const char *path, int flags, mode_t mode) {
    REAL(int, "openat", int, const char *, int, ...);
    char whole[PATH_MAX];
    const char *known = (flags & (O_CREAT | O_TRUNC)) ? named(folder, path, whole) : NULL;
    if (!known) return fails_read('o', folder, path) ? -1 : real(folder, path, flags, mode);
    pthread_mutex_lock(&one);
    struct stat before;
    int existed = !fstatat(folder, path, &before, 0);
    int changes = !existed || ((flags & O_TRUNC) && before.st_size);
    int descriptor = changes && fails(existed ? 't' : 'c') ? -1 : real(folder, path, flags, mode);
    if (changes) record(descriptor < 0 ? '-' : existed ? 't' : 'c', known, "", 0, NULL, 0, 0);
    pthread_mutex_unlock(&one);
    return descriptor;
}

#define MODE(flags) \
    mode_t mode = 0; \
    if ((flags) & (O_CREAT | O_TMPFILE)) { \
        va_list rest; \
        va_start(rest, flags); \
        mode = va_arg(rest, mode_t); \
        va_end(rest); \
    }
int open(const char *path, int flags, ...) { MODE(flags) return open_any(AT_FDCWD, path, flags, mode); }
int open64(const char *path, int flags, ...) { MODE(flags) return open_any(AT_FDCWD, path, flags, mode); }
int openat(int folder, const char *path, int flags, ...) { MODE(flags) return open_any(folder, path, flags, mode); }
int openat64(int folder, const char *path, int flags, ...) { MODE(flags) return open_any(folder, path, flags, mode); }
int creat(const char *path, mode_t mode) { return open_any(AT_FDCWD, path, O_CREAT | O_WRONLY | O_TRUNC, mode); }

#define WRITING(call, place, parts, count) \
    char whole[PATH_MAX]; \
    const char *known = opened(descriptor, whole); \
    if (!known) return call; \
    pthread_mutex_lock(&one); \
    off_t from = place; \
    ssize_t written = fails('w') ? -1 : call; \
    record_write(descriptor, known, from, parts, count, written); \
    pthread_mutex_unlock(&one); \
    return written;

ssize_t write(int descriptor, const void *data, size_t size) {
    REAL(ssize_t, "write", int, const void *, size_t);
    struct iovec part = {(void *)data, size};
    WRITING(real(descriptor, data, size), place_of(descriptor), &part, 1)
}
ssize_t writev(int descriptor, const struct iovec *parts, int count) {
    REAL(ssize_t, "writev", int, const struct iovec *, int);
    WRITING(real(descriptor, parts, count), place_of(descriptor), parts, count)
}
ssize_t pwrite(int descriptor, const void *data, size_t size, off_t place) {
    REAL(ssize_t, "pwrite", int, const void *, size_t, off_t);
    struct iovec part = {(void *)data, size};
    WRITING(real(descriptor, data, size, place), place, &part, 1)
}
ssize_t pwrite64(int descriptor, const void *data, size_t size, off_t place) {
    return pwrite(descriptor, data, size, place);
}

/* Data that the kernel copies: read back from the target. */
static void record_copied(int descriptor, const char *path, off_t place, ssize_t written) {
    if (written <= 0) return record('-', path, "", 0, NULL, 0, 0);
    REAL(int, "open", const char *, int, ...);
    char link[64], *data = malloc(written);
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    int reader = real(link, O_RDONLY | O_CLOEXEC);
    if (!data || reader < 0 || pread(reader, data, written, place) != written) abort();
    struct iovec part = {data, written};
    record('w', path, "", place, &part, 1, written);
    syscall(SYS_close, reader);
    free(data);
}
ssize_t sendfile(int descriptor, int source, off_t *offset, size_t size) {
    REAL(ssize_t, "sendfile", int, int, off_t *, size_t);
    char whole[PATH_MAX];
    const char *known = opened(descriptor, whole);
    if (!known) return real(descriptor, source, offset, size);
    pthread_mutex_lock(&one);
    off_t from = place_of(descriptor);
    ssize_t written = fails('w') ? -1 : real(descriptor, source, offset, size);
    record_copied(descriptor, known, from, written);
    pthread_mutex_unlock(&one);
    return written;
}
ssize_t sendfile64(int descriptor, int source, off_t *offset, size_t size) {
    return sendfile(descriptor, source, offset, size);
}
ssize_t copy_file_range(int source, off64_t *first, int descriptor, off64_t *place, size_t size,
                        unsigned flags) {
    REAL(ssize_t, "copy_file_range", int, off64_t *, int, off64_t *, size_t, unsigned);
    char whole[PATH_MAX];
    const char *known = opened(descriptor, whole);
    if (!known) return real(source, first, descriptor, place, size, flags);
    pthread_mutex_lock(&one);
    off_t from = place ? *place : place_of(descriptor);
    ssize_t written = fails('w') ? -1 : real(source, first, descriptor, place, size, flags);
    record_copied(descriptor, known, from, written);
    pthread_mutex_unlock(&one);
    return written;
}

#define DESCRIBED(kind, call, place) \
    char whole[PATH_MAX]; \
    const char *known = opened(descriptor, whole); \
    if (!known) return call; \
    pthread_mutex_lock(&one); \
    int status = fails(kind) ? -1 : call; \
    record(status ? '-' : kind, known, "", place, NULL, 0, 0); \
    pthread_mutex_unlock(&one); \
    return status;
int fsync(int descriptor) { REAL(int, "fsync", int); DESCRIBED('s', real(descriptor), 0) }
int fdatasync(int descriptor) { REAL(int, "fdatasync", int); DESCRIBED('s', real(descriptor), 0) }
int ftruncate(int descriptor, off_t size) { REAL(int, "ftruncate", int, off_t); DESCRIBED('t', real(descriptor, size), size) }
int ftruncate64(int descriptor, off_t size) { return ftruncate(descriptor, size); }

#define ONE_NAME(kind, call, folder, path) \
    char whole[PATH_MAX]; \
    const char *known = named(folder, path, whole); \
    if (!known) return call; \
    pthread_mutex_lock(&one); \
    int status = fails(kind) ? -1 : call; \
    record(status ? '-' : kind, known, "", 0, NULL, 0, 0); \
    pthread_mutex_unlock(&one); \
    return status;
int unlink(const char *path) { REAL(int, "unlink", const char *); ONE_NAME('u', real(path), AT_FDCWD, path) }
int unlinkat(int folder, const char *path, int flags) {
    REAL(int, "unlinkat", int, const char *, int);
    ONE_NAME((flags & AT_REMOVEDIR) ? 'd' : 'u', real(folder, path, flags), folder, path)
}
int remove(const char *path) {
    struct stat status;
    return !lstat(path, &status) && S_ISDIR(status.st_mode) ? rmdir(path) : unlink(path);
}
int rmdir(const char *path) { REAL(int, "rmdir", const char *); ONE_NAME('d', real(path), AT_FDCWD, path) }
int mkdir(const char *path, mode_t mode) { REAL(int, "mkdir", const char *, mode_t); ONE_NAME('m', real(path, mode), AT_FDCWD, path) }
int mkdirat(int folder, const char *path, mode_t mode) {
    REAL(int, "mkdirat", int, const char *, mode_t);
    ONE_NAME('m', real(folder, path, mode), folder, path)
}

static int two_names(char kind, int from, const char *path, int to, const char *other, int (*call)(int, const char *, int, const char *)) {
    char first[PATH_MAX], second[PATH_MAX];
    const char *old = named(from, path, first), *new = named(to, other, second);
    if (!old && !new) return call(from, path, to, other);
    pthread_mutex_lock(&one);
    int status = fails(kind) ? -1 : call(from, path, to, other);
    record(status ? '-' : kind, old ? old : "", new ? new : "", 0, NULL, 0, 0);
    pthread_mutex_unlock(&one);
    return status;
}
static int real_rename(int from, const char *path, int to, const char *other) {
    REAL(int, "renameat", int, const char *, int, const char *);
    return real(from, path, to, other);
}
int rename(const char *path, const char *other) { return two_names('r', AT_FDCWD, path, AT_FDCWD, other, real_rename); }
int renameat(int from, const char *path, int to, const char *other) { return two_names('r', from, path, to, other, real_rename); }
static int real_link(int from, const char *path, int to, const char *other) {
    REAL(int, "linkat", int, const char *, int, const char *, int);
    return real(from, path, to, other, 0);
}
int link(const char *path, const char *other) { return two_names('l', AT_FDCWD, path, AT_FDCWD, other, real_link); }
int linkat(int from, const char *path, int to, const char *other, int flags) { return two_names('l', from, path, to, other, real_link); }
int symlink(const char *target, const char *path) {
    REAL(int, "symlink", const char *, const char *);
    char whole[PATH_MAX];
    const char *known = named(AT_FDCWD, path, whole);
    if (!known) return real(target, path);
    pthread_mutex_lock(&one);
    int status = fails('y') ? -1 : real(target, path);
    record(status ? '-' : 'y', known, target, 0, NULL, 0, 0);
    pthread_mutex_unlock(&one);
    return status;
}

/* Calls that change nothing. */
#define STATUS(name, folder, ...) \
    REAL(int, #name, __VA_ARGS__); \
    if (fails_read('i', folder, path)) return -1;
int stat(const char *path, struct stat *found) { STATUS(stat, AT_FDCWD, const char *, struct stat *) return real(path, found); }
int stat64(const char *path, struct stat64 *found) { STATUS(stat64, AT_FDCWD, const char *, struct stat64 *) return real(path, found); }
int lstat(const char *path, struct stat *found) { STATUS(lstat, AT_FDCWD, const char *, struct stat *) return real(path, found); }
int lstat64(const char *path, struct stat64 *found) { STATUS(lstat64, AT_FDCWD, const char *, struct stat64 *) return real(path, found); }
int fstatat64(int folder, const char *path, struct stat64 *found, int flags) {
    STATUS(fstatat64, folder, int, const char *, struct stat64 *, int)
    return real(folder, path, found, flags);
}
DIR *opendir(const char *path) {
    REAL(DIR *, "opendir", const char *);
    return fails_read('o', AT_FDCWD, path) ? NULL : real(path);
}
ssize_t read(int descriptor, void *data, size_t size) {
    REAL(ssize_t, "read", int, void *, size_t);
    return fails_read('g', descriptor, NULL) ? -1 : real(descriptor, data, size);
}
int close(int descriptor) {
    REAL(int, "close", int);
    if (descriptor == log_descriptor) { /* a daemon closes all that it has */
        errno = EBADF;
        return -1;
    }
    int writes = (fcntl(descriptor, F_GETFL) & O_ACCMODE) != O_RDONLY;
    int failed = writes && fails_read('x', descriptor, NULL), saved = errno;
    int status = real(descriptor); /* also when it fails, the descriptor is closed */
    if (failed) errno = saved;
    return failed ? -1 : status;
}
int flock(int descriptor, int operation) {
    REAL(int, "flock", int, int);
    if (fails_read('f', descriptor, NULL)) return -1;
    char whole[PATH_MAX];
    return lose && opened(descriptor, whole) ? 0 : real(descriptor, operation);
}
