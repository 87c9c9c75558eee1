/* Replaces functions of libc: the n-th call that changes a file fails, once. The program's own
 * definitions win over libc's. */
#ifndef SPW_TESTS_FILE_FAULTS_H
#define SPW_TESTS_FILE_FAULTS_H

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <unistd.h>

static int64_t file_fault_after = -1; /* calls until one fails; < 0: none does */
static int file_fault_error;

static void file_fault_nth(int64_t n, int error)
{
    file_fault_after = n;
    file_fault_error = error;
}

static bool file_fails(void)
{
    bool now = file_fault_after == 0;
    if (file_fault_after >= 0)
        file_fault_after--;
    if (now)
        errno = file_fault_error;
    return now;
}

/* Its first half is written before it fails. */
ssize_t pwrite(int fd, const void *from, size_t n, off_t at)
{
    if (!file_fails())
        return syscall(SYS_pwrite64, fd, from, n, at);
    int error = errno;
    syscall(SYS_pwrite64, fd, from, n / 2, at);
    errno = error;
    return -1;
}

int fallocate(int fd, int mode, off_t at, off_t n)
{
    return file_fails() ? -1 : (int)syscall(SYS_fallocate, fd, mode, at, n);
}

int ftruncate(int fd, off_t n)
{
    return file_fails() ? -1 : (int)syscall(SYS_ftruncate, fd, n);
}

int fdatasync(int fd)
{
    return file_fails() ? -1 : (int)syscall(SYS_fdatasync, fd);
}

int fsync(int fd)
{
    return file_fails() ? -1 : (int)syscall(SYS_fsync, fd);
}

int renameat2(int from_fd, const char *from, int to_fd, const char *to, unsigned flags)
{
    return file_fails() ? -1 : (int)syscall(SYS_renameat2, from_fd, from, to_fd, to, flags);
}

#endif
