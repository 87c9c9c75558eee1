/* The files of a job under every failure: a process that ends between any two writes or within one,
 * a loss of power, calls of the system and allocations that fail, short writes, lines cut off at
 * every byte, files that change while the job runs, bits that flip. After one more run every item
 * has one line, and no line that was on the drive has changed. */
#include "tests/check.h"
#include "tests/json_text.h"
#include "tools/command/job/store/store_parts.h"

#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <xxhash.h>

const struct cli_command cli_commands[] = {{.name = NULL}};

static char folder[64];
static uint64_t seed;

/* ---- calls of the system ---- */

static struct {
    int64_t fails_after; /* calls until one fails; < 0: none does */
    int error;
    size_t most;           /* bytes of a write; 0: any */
    void (*changed)(void); /* after each change of a file */
} calls = {.fails_after = -1};

static bool call_fails(void)
{
    const bool now = calls.fails_after == 0;
    calls.fails_after -= calls.fails_after >= 0;
    if (now)
        errno = calls.error;
    return now;
}

/* A recovery is a store of its own, whose changes are not looked at. */
static bool recovers;

static void has_changed(void)
{
    if (!recovers && calls.changed)
        calls.changed();
}

static ssize_t write_some(int fd, const void *text, size_t bytes, off_t at)
{
    if (syscall(SYS_pwrite64, fd, text, bytes, at) != (long)bytes)
        abort();
    return (ssize_t)bytes;
}

ssize_t pwrite(int fd, const void *text, size_t bytes, off_t at)
{
    if (call_fails()) {
        const int error = errno;
        write_some(fd, text, bytes / 2, at);
        errno = error;
        return -1;
    }
    if (!recovers && calls.changed) { /* the line is half there for a moment */
        write_some(fd, text, bytes / 2, at);
        calls.changed();
    }
    const ssize_t n = write_some(fd, text, calls.most ? spw_min_u64(calls.most, bytes) : bytes, at);
    has_changed();
    return n;
}

int ftruncate(int fd, off_t n)
{
    if (call_fails())
        return -1;
    const int rc = (int)syscall(SYS_ftruncate, fd, n);
    has_changed();
    return rc;
}

/* ---- what is on the drive ---- */

enum { OUTPUT, ERRORS, STATE, N_FILES };
static const char *const ends[N_FILES] = {"", ".errors", ".state"};

/* Of the job "job": what a loss of power leaves at least. */
static struct {
    uint64_t bytes[N_FILES];
} drive;

static const char *path_of(const char *job, int file)
{
    static char paths[4][128];
    static int next;
    char *path = paths[next++ % 4];
    snprintf(path, sizeof paths[0], "%s/%s%s", folder, job, ends[file]);
    return path;
}

static uint64_t size_of(const char *path)
{
    struct stat st;
    return stat(path, &st) ? 0 : (uint64_t)st.st_size;
}

static void note_sync(int fd)
{
    struct stat st, named;
    bool ok = fstat(fd, &st) == 0;
    for (int i = 0; ok && i < N_FILES; i++) {
        char path[128];
        snprintf(path, sizeof path, "%s/job%s", folder, ends[i]);
        if (stat(path, &named) == 0 && named.st_ino == st.st_ino)
            drive.bytes[i] = (uint64_t)st.st_size;
    }
}

int fdatasync(int fd)
{
    if (call_fails())
        return -1;
    note_sync(fd);
    return 0;
}

int fsync(int fd)
{
    return fdatasync(fd);
}

/* ---- a job ---- */

enum { ITEMS = 9, N_PARTS = 2 };

static __thread bool is_of_test; /* allocations of the test never fail */

static void *allocate(size_t bytes)
{
    return !is_of_test && spw_alloc_fails() ? NULL : malloc(bytes);
}

/* Items 3, 6 and 9 have no answer, unless the input was corrected. Two have no id. */
static struct request item_of(int number, bool is_corrected)
{
    bool failed = number % 3 == 0;
    is_of_test = true;
    json_t *id = number % 4 == 1 ? NULL : json_sprintf("id \"%d\"\n", number);
    is_of_test = false;
    return (struct request){
        .number = (uint64_t)number,
        .digest = (uint64_t)number * 1000003 + (failed && is_corrected),
        .id = id,
    };
}

static json_t *line_of(const struct request *x, const char *key, int value)
{
    is_of_test = true;
    json_t *line = x->id ? json_pack("{s:O, s:i}", "id", x->id, key, value)
                         : json_pack("{s:I, s:i}", "line", (json_int_t)x->number, key, value);
    json_object_set_new(line, "line", json_integer((json_int_t)x->number));
    is_of_test = false;
    return line;
}

struct job {
    const char *name;
    bool is_corrected, keeps; /* keep_answers before each commit */
    bool retries;             /* --retry-failed */
    int run;                  /* is in its lines */
};

/* A part of an item. Of an item that was corrected, the first part has the digest of before. */
static struct request part_of(int number, int index, bool is_corrected)
{
    struct request x = item_of(number, is_corrected && index > 0);
    is_of_test = true;
    json_decref(x.id);
    x.id = json_pack("[i, i]", number, index);
    x.digest += 7 * (uint64_t)index;
    is_of_test = false;
    return x;
}

/* Parts that an earlier run has committed are not committed again. */
static int answer_part(struct job_store *s, const struct job *j, int number, int index)
{
    struct request x = part_of(number, index, j->is_corrected);
    json_t *line;
    int code = job_store_part(s, &x, &line);
    if (!code && line) {
        CHECK(json_integer_value(json_object_get(line, "part")) <= j->run);
        CHECK(json_equal(json_object_get(line, "id"), x.id));
    } else if (!code) {
        code = job_store_commit_part(s, &x, line_of(&x, "part", j->run));
    }
    json_decref(line);
    json_decref(x.id);
    return code;
}

static int answer(struct job_store *s, const struct job *j, struct request *x, int number)
{
    int32_t tokens[] = {number, j->run};
    struct request_choice choice = {.result = {.tokens = tokens, .n_tokens = 2, .logits_hash = 7}};
    x->n_prompts = x->n_choices = 1;
    x->choices = &choice;
    struct job_kept kept = {0};
    int code = job_store_answer(s, x, 0, "machine", &kept);
    CHECK(code || !kept.n_tokens || (kept.n_tokens == 2 && kept.tokens[0] == number));
    spw_free(kept.tokens);
    if (!code && j->keeps)
        code = job_store_keep_answers(s, x, "machine");
    x->choices = NULL;
    for (int i = 0; i < N_PARTS && !code; i++)
        code = answer_part(s, j, number, i);
    if (code)
        return code;
    return number % 3 == 0 && !j->is_corrected
               ? job_store_commit_error(s, x, line_of(x, "error", j->run))
               : job_store_commit(s, x, line_of(x, "answer", j->run));
}

static int pass(struct job_store *s, const struct job *j, bool answers)
{
    int code = 0;
    job_store_begin_pass(s);
    for (int i = 1; i <= ITEMS && !code; i++) {
        struct request x = item_of(i, j->is_corrected);
        enum job_standing standing;
        code = job_store_meet(s, &x, &standing);
        if (!code && answers && standing == JOB_NEW)
            code = answer(s, j, &x, i);
        json_decref(x.id);
    }
    return code;
}

/* As batch.c does it. */
static int run_job(const struct job *j)
{
    struct job_store *s = NULL;
    char path[128];
    snprintf(path, sizeof path, "%s/%s", folder, j->name);
    json_t *identity = json_pack("{s:i}", "the model", 1);
    const struct job_store_options options = {
        .output = path, .identity = identity, .retry_failed = j->retries};
    int code = job_store_open(&s, &options);
    json_decref(identity);
    if (!code)
        code = pass(s, j, false);
    if (!code)
        code = job_store_begin(s);
    if (!code)
        code = pass(s, j, true);
    return job_store_close(s, code);
}

/* Messages go to a file. */
static int mute(void)
{
    int saved = dup(2), said = open(path_of("said", OUTPUT), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    dup2(said, 2);
    close(said);
    return saved;
}

static void unmute(int saved)
{
    dup2(saved, 2);
    close(saved);
}

static int run_quietly(const struct job *j)
{
    int saved = mute(), code = run_job(j);
    unmute(saved);
    return code;
}

/* No part is there twice, unless another digest of its item asked for that. */
static void check_parts(const char *name)
{
    enum { BEGIN = 24, END = JOB_RECORD_HEAD - 1 }; /* key and digest */
    json_t *seen = json_object();
    char line[1024];
    FILE *f = fopen(path_of(name, STATE), "r");
    while (f && fgets(line, sizeof line, f)) {
        if (strncmp(line + 17, "part ", 5) != 0)
            continue;
        line[END] = 0;
        CHECK_MSG(!json_object_get(seen, line + BEGIN), "%s: part %s is there twice", name,
                  line + BEGIN);
        json_object_set_new(seen, line + BEGIN, json_true());
    }
    if (f)
        fclose(f);
    json_decref(seen);
}

/* Every item has a line in one of the files. Returns how many have an answer. */
static int check_files(const char *name)
{
    check_parts(name);
    int n_answers = 0, seen[ITEMS + 1] = {0};
    for (int file = OUTPUT; file <= ERRORS; file++) {
        char line[256];
        FILE *f = fopen(path_of(name, file), "r");
        while (f && fgets(line, sizeof line, f)) {
            json_t *x = json_loads(line, 0, NULL);
            int number = (int)json_integer_value(json_object_get(x, "line"));
            CHECK_MSG(number >= 1 && number <= ITEMS, "%s%s: %s", name, ends[file], line);
            if (number >= 1 && number <= ITEMS)
                seen[number]++;
            CHECK(!!json_object_get(x, "answer") == (file == OUTPUT));
            n_answers += file == OUTPUT;
            json_decref(x);
        }
        if (f)
            fclose(f);
    }
    for (int i = 1; i <= ITEMS; i++)
        CHECK_MSG(seen[i] == 1, "%s: item %d has %d lines", name, i, seen[i]);
    return n_answers;
}

static void remove_job(const char *name)
{
    for (int i = 0; i < N_FILES; i++)
        unlink(path_of(name, i));
    memset(&drive, 0, sizeof drive);
}

/* The first `bytes` of a file. */
static void copy(const char *from, const char *to, uint64_t bytes)
{
    static char text[1 << 16];
    int in = open(from, O_RDONLY), to_fd = open(to, O_CREAT | O_TRUNC | O_WRONLY, 0600);
    ssize_t n = in < 0 ? 0 : read(in, text, sizeof text);
    CHECK(to_fd >= 0 && n >= 0 && n < (ssize_t)sizeof text);
    n = (ssize_t)spw_min_u64((uint64_t)n, bytes);
    CHECK(write(to_fd, text, (size_t)n) == n);
    if (in >= 0)
        close(in);
    close(to_fd);
}

/* ---- a process that ends ---- */

static int n_crashes;
static struct job now; /* that runs */

static void recover(void (*snapshot)(void))
{
    const struct job again = {.name = "snap", .is_corrected = now.is_corrected, .run = now.run + 1};
    recovers = true;
    for (int i = 0; i < N_FILES; i++)
        unlink(path_of("snap", i));
    snapshot();
    CHECK(run_quietly(&again) == 0);
    CHECK(check_files("snap") == (now.is_corrected ? ITEMS : ITEMS - ITEMS / 3));
    n_crashes++;
    recovers = false;
}

static void copy_files(void)
{
    for (int i = 0; i < N_FILES; i++)
        copy(path_of("job", i), path_of("snap", i), UINT64_MAX);
}

static void crash(void)
{
    recover(copy_files);
}

/* A first run, one that changes nothing, and one whose failed lines were corrected. */
static void run_three(bool keeps)
{
    for (int run = 1; run <= 3; run++) {
        now =
            (struct job){.name = "job", .is_corrected = run == 3, .keeps = keeps, .run = 10 * run};
        CHECK(run_job(&now) == 0);
        check_files("job");
    }
}

static void test_crashes(void)
{
    for (int keeps = 0; keeps < 2; keeps++) {
        remove_job("job");
        calls.changed = crash;
        run_three(keeps);
        calls.changed = NULL;
    }
    CHECK_MSG(n_crashes > 80, "%d", n_crashes);
}

/* ---- a loss of power ---- */

/* Each file has what was synced, and any part of the rest. */
static void lose_power(void)
{
    for (int i = 0; i < N_FILES; i++) {
        uint64_t least = drive.bytes[i], all = size_of(path_of("job", i));
        copy(path_of("job", i), path_of("synced", i), least);
        copy(path_of("job", i), path_of("snap", i),
             check_range(&seed, spw_min_u64(least, all), all));
    }
}

/* Of a file: without a last line that is not whole. */
static uint64_t whole_lines(const char *path)
{
    uint64_t n = 0, end = 0;
    FILE *f = fopen(path, "r");
    for (int c; f && (c = fgetc(f)) != EOF;) {
        n++;
        end = c == '\n' ? n : end;
    }
    if (f)
        fclose(f);
    return end;
}

/* Lines that were on the drive stay as they are. */
static void power_loss(void)
{
    char command[256];
    recover(lose_power);
    const char *synced = path_of("synced", OUTPUT);
    snprintf(command, sizeof command, "cmp -s -n %llu %s %s",
             (unsigned long long)whole_lines(synced), synced, path_of("snap", OUTPUT));
    CHECK(system(command) == 0);
}

static void test_power_losses(void)
{
    for (int i = 0; i < check_amount(8); i++) {
        remove_job("job");
        calls.changed = power_loss;
        run_three(i % 2);
        calls.changed = NULL;
    }
}

/* ---- what fails ---- */

static void test_failing_calls(void)
{
    static const int errors[] = {ENOSPC, EIO};
    for (int n = 0, failed = 1; failed || n < 30; n++) {
        remove_job("job");
        now = (struct job){.name = "job", .run = 1};
        if (n % 2) { /* the second run of a job */
            CHECK(run_job(&now) == 0);
            now.is_corrected = true;
        }
        calls.error = errors[n / 2 % 2];
        calls.fails_after = n / 2;
        int code = run_quietly(&now);
        failed = calls.fails_after < 0;
        calls.fails_after = -1;
        CHECK_MSG(!failed || code != 0 || n % 2, "call %d", n);
        now.run++;
        CHECK(run_quietly(&now) == 0);
        check_files("job");
        CHECK(n < 500);
    }
}

static void test_failing_allocations(int stride)
{
    bool has_failed = true;
    for (int n = 0; has_failed; n += stride) {
        remove_job("job");
        now = (struct job){.name = "job", .run = 1, .keeps = true};
        CHECK(run_job(&now) == 0);
        now = (struct job){.name = "job", .run = 2, .is_corrected = true};
        int64_t before = spw_alloc_outstanding();
        json_set_alloc_funcs(allocate, free);
        spw_alloc_fail_nth(n);
        int code = run_quietly(&now);
        has_failed = json_allocation_has_failed();
        spw_alloc_fail_nth(-1);
        json_set_alloc_funcs(malloc, free);
        CHECK(spw_alloc_outstanding() == before && (code == 0 || has_failed));
        CHECK_MSG(run_quietly(&now) == 0, "allocation %d", n);
        CHECK_MSG(check_files("job") == ITEMS, "allocation %d", n);
    }
}

static void test_short_writes(void)
{
    for (calls.most = 1; calls.most < 6; calls.most++) {
        remove_job("job");
        run_three(true);
    }
    calls.most = 0;
}

/* ---- torn files ---- */

/* Of the state: bytes of the first line, which says whose job it is. */
static uint64_t head_bytes(void)
{
    char line[1024];
    FILE *f = fopen(path_of("job", STATE), "r");
    CHECK(f && fgets(line, sizeof line, f));
    fclose(f);
    return strlen(line);
}

/* OUTPUT and errors follow from the state. A state that lacks what they have was not left by a
 * kill: the run is refused, or asked to make them anew. */
static void test_torn_files(void)
{
    remove_job("job");
    now = (struct job){.name = "job", .run = 1};
    CHECK(run_job(&now) == 0);
    const uint64_t head = head_bytes();
    for (int file = 0; file < N_FILES; file++)
        for (uint64_t left = 0; left < size_of(path_of("job", file)); left++) {
            copy_files();
            copy(path_of("job", file), path_of("snap", file), left);
            struct job again = {.name = "snap", .run = 2};
            int code = run_quietly(&again);
            if (file == STATE) {
                CHECK_MSG(code == CLI_REFUSED && size_of(path_of("snap", STATE)) == left,
                          "%d: %d of %d, head %d", code, (int)left,
                          (int)size_of(path_of("job", STATE)), (int)head);
                if (left < head) {
                    CHECK(size_of(path_of("snap", STATE)) == left);
                    continue;
                }
                again.retries = true;
                code = run_quietly(&again);
            }
            CHECK_MSG(code == 0, "%s, %d bytes", ends[file], (int)left);
            check_files("snap");
        }
}

/* ---- parts ---- */

static int try_parts(struct job_store **s)
{
    char path[128];
    snprintf(path, sizeof path, "%s", path_of("parts", OUTPUT));
    json_t *identity = json_pack("{s:i}", "the model", 1);
    const struct job_store_options options = {.output = path, .identity = identity};
    int code = job_store_open(s, &options);
    json_decref(identity);
    return code;
}

static struct job_store *open_parts(void)
{
    struct job_store *s = NULL;
    CHECK(try_parts(&s) == 0 && job_store_begin(s) == 0);
    return s;
}

static void close_parts(struct job_store *s)
{
    CHECK(job_store_close(s, 0) == 0);
}

static void commit_part(struct job_store *s, uint64_t digest, int value)
{
    struct request x = part_of(1, 0, false);
    x.digest = digest;
    CHECK(job_store_commit_part(s, &x, line_of(&x, "part", value)) == 0);
    json_decref(x.id);
}

/* 0: there is none with this digest. */
static int find_part(struct job_store *s, uint64_t digest)
{
    struct request x = part_of(1, 0, false);
    json_t *line;
    x.digest = digest;
    CHECK(job_store_part(s, &x, &line) == 0);
    int value = (int)json_integer_value(json_object_get(line, "part"));
    json_decref(line);
    json_decref(x.id);
    return value;
}

/* Appends to the state what is no line of this test's store. */
static void add_text(const char *text, size_t bytes)
{
    FILE *f = fopen(path_of("parts", STATE), "a");
    CHECK(f && fwrite(text, 1, bytes, f) == bytes && fclose(f) == 0);
}

/* The record of the part, with a text of the test. */
static char *record_of(const char *text, uint64_t digest, size_t *bytes)
{
    struct request x = part_of(1, 0, false);
    struct job_record r = {.kind = JOB_PART, .digest = digest, .text = text, .bytes = strlen(text)};
    CHECK(job_key_of(&x, &r.key) == 0);
    char *line = job_record_line(&r, bytes);
    json_decref(x.id);
    return line;
}

/* Of two lines of one id the later one counts, also for a line with another digest. A line that is
 * not whole counts as none. */
static void test_parts(void)
{
    struct job_store *s = open_parts();
    size_t bytes;
    CHECK(find_part(s, 1) == 0);
    commit_part(s, 1, 10);
    CHECK(find_part(s, 1) == 10 && find_part(s, 2) == 0);
    commit_part(s, 1, 20);
    CHECK(find_part(s, 1) == 20);
    close_parts(s);
    s = open_parts();
    CHECK(find_part(s, 1) == 20 && find_part(s, 2) == 0);
    commit_part(s, 2, 30);
    CHECK(find_part(s, 1) == 0 && find_part(s, 2) == 30);
    close_parts(s);
    const uint64_t size = size_of(path_of("parts", STATE));
    char *line = record_of("{\"part\":40}", 1, &bytes);
    add_text(line, bytes - 1);
    s = open_parts();
    CHECK(find_part(s, 1) == 0 && find_part(s, 2) == 30);
    CHECK(size_of(path_of("parts", STATE)) == size);
    close_parts(s);
    add_text(line, bytes);
    s = open_parts();
    CHECK(find_part(s, 1) == 40 && find_part(s, 2) == 0);
    close_parts(s);
    spw_free(line);
    remove_job("parts");
}

/* Digits as another version of the JSON library, or another program, writes them. If an allocation
 * fails, a part is refused or has all its bytes. */
static void test_part_of_others(void)
{
    const double reals[] = {0.1, 1e-7, 100.0, 1e300, -0.0, 0.1234567890123456};
    const size_t n_reals = sizeof reals / sizeof *reals;
    close_parts(open_parts());
    size_t bytes;
    char *added = record_of("{\"part\":60,\"text\":\"more than 16 bytes\","
                            "\"reals\":[0.1,1e-7,1.0e2,1e300,-0.0,0.1234567890123456]}",
                            1, &bytes);
    add_text(added, bytes);
    spw_free(added);
    struct job_store *s = open_parts();
    bool has_failed = true;
    for (int n = 0; has_failed; n++) {
        struct request x = part_of(1, 0, false);
        json_t *line;
        x.digest = 1;
        json_set_alloc_funcs(allocate, free);
        spw_alloc_fail_nth(n);
        int code = job_store_part(s, &x, &line);
        has_failed = json_allocation_has_failed();
        spw_alloc_fail_nth(-1);
        json_set_alloc_funcs(malloc, free);
        CHECK_MSG(has_failed ? code == CLI_FAILED && !line : code == 0 && line, "allocation %d", n);
        for (size_t i = 0; line && i < n_reals; i++) {
            double is = json_real_value(json_array_get(json_object_get(line, "reals"), i));
            CHECK(memcmp(&is, &reals[i], sizeof is) == 0);
        }
        json_decref(line);
        json_decref(x.id);
    }
    close_parts(s);
    remove_job("parts");
}

static void flip_bit(const char *path, uint64_t bit)
{
    char byte;
    int fd = open(path, O_RDWR);
    CHECK(pread(fd, &byte, 1, (off_t)(bit / 8)) == 1);
    byte = (char)(byte ^ 1 << bit % 8);
    CHECK(pwrite(fd, &byte, 1, (off_t)(bit / 8)) == 1);
    close(fd);
}

/* A bit of the state has flipped: the run is refused, and --retry-failed computes again what the
 * line had. Of the last newline: the line was never whole. */
static void test_flipped_state(void)
{
    remove_job("job");
    now = (struct job){.name = "job", .run = 1, .keeps = true};
    CHECK(run_job(&now) == 0);
    const uint64_t head = head_bytes(), all = size_of(path_of("job", STATE));
    for (uint64_t byte = 0; byte < all; byte += check_full() ? 1 : 7) {
        struct job again = {.name = "snap", .run = 2};
        copy_files();
        flip_bit(path_of("snap", STATE), 8 * byte + check_range(&seed, 0, 7));
        CHECK_MSG(run_quietly(&again) == CLI_REFUSED, "byte %d", (int)byte);
        if (byte < head)
            continue;
        again.retries = true;
        CHECK_MSG(run_quietly(&again) == 0, "byte %d", (int)byte);
        check_files("snap");
        again.retries = false; /* the damaged line is not named again */
        CHECK_MSG(run_quietly(&again) == 0, "byte %d", (int)byte);
    }
}

/* A bit of OUTPUT or of the errors has flipped: no run takes the line for an answer, and nothing is
 * computed to mend it. */
static void test_flipped_results(void)
{
    char command[300];
    remove_job("job");
    now = (struct job){.name = "job", .run = 1, .is_corrected = true};
    CHECK(run_job(&now) == 0);
    for (uint64_t byte = 0; byte < size_of(path_of("job", OUTPUT)); byte++) {
        struct job again = {.name = "snap", .run = 2, .is_corrected = true};
        struct job_store *s;
        bool is_damaged = false;
        const uint64_t bit = 8 * byte + check_range(&seed, 0, 7);
        copy_files();
        flip_bit(path_of("snap", OUTPUT), bit);
        const bool is_torn = byte + 1 == size_of(path_of("job", OUTPUT)); /* the last newline */
        int saved = mute();
        CHECK(job_store_look(&s, path_of("snap", OUTPUT), &is_damaged) == 0);
        unmute(saved);
        CHECK(is_damaged != is_torn && job_store_totals(s).n_done < ITEMS);
        job_store_close(s, 0);
        CHECK(run_quietly(&again) == (is_torn ? 0 : CLI_REFUSED));
        again.retries = true;
        CHECK(run_quietly(&again) == 0);
        snprintf(command, sizeof command, "cmp -s %s %s", path_of("job", OUTPUT),
                 path_of("snap", OUTPUT));
        CHECK(system(command) == 0);
    }
}

/* ---- files that change while the job runs ---- */

/* The run fails, and the next one writes the file again. */
static void test_changed_files(void)
{
    static const char *const changes[] = {
        "rm %s", "mv %s %s.away",    "cp %s %s.away; mv %s.away %s",
        ": >%s", "truncate -s 3 %s", "echo more >>%s"};
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
        struct job_store *s = open_parts();
        struct request x = item_of(2, false);
        char command[512];
        const char *path = path_of("parts", OUTPUT);
        enum job_standing standing;
        CHECK(job_store_commit(s, &x, line_of(&x, "answer", 1)) == 0);
        CHECK(job_store_flush(s) == 0 && size_of(path) > 0);
        snprintf(command, sizeof command, changes[i], path, path, path, path);
        CHECK(system(command) == 0);
        int saved = mute();
        CHECK_MSG(job_store_close(s, 0) == CLI_FAILED, "%s", changes[i]);
        snprintf(command, sizeof command, "grep -q 'changed, replaced or removed this file' %s",
                 path_of("said", OUTPUT));
        CHECK_MSG(system(command) == 0, "%s", changes[i]);
        CHECK(try_parts(&s) == 0);
        int code = job_store_begin(s);
        unmute(saved);
        CHECK_MSG(code == (i == 5 ? CLI_REFUSED : 0), "%s: %d", changes[i], code);
        job_store_begin_pass(s);
        CHECK(job_store_meet(s, &x, &standing) == 0 && standing == JOB_DONE);
        CHECK(size_of(path) > 20);
        job_store_close(s, code);
        json_decref(x.id);
        remove_job("parts");
        snprintf(command, sizeof command, "rm -f %s.away", path);
        CHECK(system(command) == 0);
    }
}

/* The line of an item without an id is found by its number, whatever its text is. */
static void test_nul_in_text(void)
{
    struct job_store *s = open_parts();
    const struct request x = {.number = 1, .digest = 5};
    enum job_standing standing = JOB_NEW;
    json_t *line = json_pack("{s:i, s:s%}", "line", 1, "text", "a\0b", (size_t)3);
    CHECK(job_store_commit(s, &x, line) == 0);
    close_parts(s);
    s = open_parts();
    if (s) {
        job_store_begin_pass(s);
        CHECK(job_store_meet(s, &x, &standing) == 0 && standing == JOB_DONE);
    }
    close_parts(s);
    remove_job("parts");
}

/* A line comes to OUTPUT when the drive has it in the state. */
static void test_failing_sync(void)
{
    struct job_store *s = open_parts();
    struct request x = item_of(2, false);
    CHECK(job_store_commit(s, &x, line_of(&x, "answer", 1)) == 0);
    calls.error = EIO;
    calls.fails_after = 0;
    int saved = mute();
    CHECK(job_store_flush(s) == CLI_FAILED && calls.fails_after == -1);
    CHECK(job_store_flush(s) == 0 && size_of(path_of("parts", OUTPUT)) == 0);
    CHECK(job_store_close(s, CLI_FAILED) == CLI_FAILED);
    unmute(saved);
    close_parts(open_parts());
    CHECK(size_of(path_of("parts", OUTPUT)) > 20);
    json_decref(x.id);
    remove_job("parts");
}

int main(int argc, char **argv)
{
    char command[128];
    seed = check_seed();
    snprintf(folder, sizeof folder, "%s/spw_store_XXXXXX",
             access("/dev/shm", W_OK) ? "/tmp" : "/dev/shm"); /* it makes many small files */
    CHECK(mkdtemp(folder));
    test_crashes();
    test_power_losses();
    test_failing_calls();
    test_failing_allocations(check_stride(argc, argv, 1));
    test_short_writes();
    test_torn_files();
    test_parts();
    test_part_of_others();
    test_flipped_state();
    test_flipped_results();
    test_changed_files();
    test_nul_in_text();
    test_failing_sync();
    snprintf(command, sizeof command, "rm -r %s", folder);
    CHECK(system(command) == 0);
    CHECK(spw_alloc_outstanding() == 0);
    return check_done();
}
