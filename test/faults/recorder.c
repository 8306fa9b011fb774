/*
 * Logs, in order, what a process writes to the files of one directory (RECORD_DIR) and what it makes durable there, into RECORD_LOG. For LD_PRELOAD.
 *
 * A record: the kind (w write, t truncate, s sync, u unlink, m move), the length of the name, the offset, the length of the data, the name, the data.
 * -shm is left out: SQLite builds it anew after a crash.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

#define FILES 4096
#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

static char *names[FILES];

/* The name below RECORD_DIR, or null. */
static const char *below(const char *path) {
  const char *dir = getenv("RECORD_DIR");
  size_t n = dir ? strlen(dir) : 0, length = path ? strlen(path) : 0;
  if (!n || length <= n || strncmp(path, dir, n) || path[n] != '/') return 0;
  if (length > 4 && !strcmp(path + length - 4, "-shm")) return 0;
  return path + n + 1;
}

static const char *named(int fd) { return fd >= 0 && fd < FILES ? names[fd] : 0; }

static void note(char kind, const char *name, int64_t offset, const void *data, uint64_t length) {
  static int log = -1;
  if (log < 0) log = syscall(SYS_openat, AT_FDCWD, getenv("RECORD_LOG"), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644);
  struct { uint32_t kind, name; int64_t offset; uint64_t length; } head = { (uint32_t)kind, strlen(name), offset, length };
  struct iovec parts[] = { { &head, sizeof head }, { (void *)name, head.name }, { (void *)data, data ? length : 0 } };
  if (log < 0 || syscall(SYS_writev, log, parts, 3) < 0) abort();
}

static int opened(int fd, const char *path, int flags) {
  const char *name = below(path);
  if (fd < 0 || fd >= FILES || !name) return fd;
  free(names[fd]);
  names[fd] = strdup(name);
  if (flags & O_TRUNC) note('t', name, 0, 0, 0);
  return fd;
}

#define OPEN(open)                                                              \
  int open(const char *path, int flags, ...) {                                  \
    va_list rest;                                                               \
    va_start(rest, flags);                                                      \
    mode_t mode = flags & (O_CREAT | __O_TMPFILE) ? va_arg(rest, mode_t) : 0;   \
    va_end(rest);                                                               \
    return opened(REAL(open)(path, flags, mode), path, flags);                  \
  }
OPEN(open)
OPEN(open64)

int close(int fd) {
  if (named(fd)) free(names[fd]), names[fd] = 0;
  return REAL(close)(fd);
}

ssize_t write(int fd, const void *data, size_t length) {
  const char *name = named(fd);
  ssize_t n = REAL(write)(fd, data, length);
  /* Afterwards, so that an append is seen where it fell. */
  if (name && n > 0) note('w', name, lseek(fd, 0, SEEK_CUR) - n, data, n);
  return n;
}

#define PWRITE(pwrite)                                                          \
  ssize_t pwrite(int fd, const void *data, size_t length, off_t offset) {       \
    ssize_t n = REAL(pwrite)(fd, data, length, offset);                         \
    if (named(fd) && n > 0) note('w', named(fd), offset, data, n);              \
    return n;                                                                   \
  }
PWRITE(pwrite)
PWRITE(pwrite64)

#define TRUNCATE(ftruncate)                                                     \
  int ftruncate(int fd, off_t length) {                                         \
    int failed = REAL(ftruncate)(fd, length);                                   \
    if (named(fd) && !failed) note('t', named(fd), length, 0, 0);               \
    return failed;                                                              \
  }
TRUNCATE(ftruncate)
TRUNCATE(ftruncate64)

#define SYNC(fsync)                                                             \
  int fsync(int fd) {                                                           \
    int failed = REAL(fsync)(fd);                                               \
    if (named(fd) && !failed) note('s', named(fd), 0, 0, 0);                    \
    return failed;                                                              \
  }
SYNC(fsync)
SYNC(fdatasync)

int unlink(const char *path) {
  int failed = REAL(unlink)(path);
  if (below(path) && !failed) note('u', below(path), 0, 0, 0);
  return failed;
}

int rename(const char *from, const char *to) {
  int failed = REAL(rename)(from, to);
  if (below(from) && below(to) && !failed) note('m', below(from), 0, below(to), strlen(below(to)));
  return failed;
}
