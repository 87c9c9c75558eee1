/* Measuring: the limits of this machine and of a drive, whether a model may be run with quantized
 * KV, the time that a plan must take. Part of the public API; an engine needs none of this.
 *
 * Nothing here changes a result. Every call returns 0 or -errno, and one line of text in a `struct
 * spw_error`. */
#ifndef SPW_RUNTIME_MEASURE_H
#define SPW_RUNTIME_MEASURE_H

#include "runtime/spillway.h"
#include "offload/device/topology_info.h"

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

/* ---- the machine's own limits, measured now (half a second, on a GPU one or two) ---- */

/* A profile is a file in which what was measured is kept. */
enum spw_probe_mode {
    SPW_PROBE_UNKNOWN, /* measure what the profile does not know */
    SPW_PROBE_AGAIN,   /* measure though it does */
    SPW_PROBE_NEVER,   /* -ENODATA for what it does not know */
};

struct spw_machine {
    char cpu[128], isa[32], gpu[80]; /* gpu: "" where the CPU computes */
    uint32_t threads, cores;         /* cores: that this process may use, whatever `threads` is */
    /* The device's memory. On the CPU: by all threads, the best of several ways to read, and which
     * one that was ("4 streams a thread, huge pages"). */
    double read_bytes_per_second;
    char read_pattern[64];
    double copy_bytes_per_second; /* host to device as the ring copies: GPU, 64 MiB pinned; CPU, one
                                     stream */
    /* CPU: both at once, one thread copying and the others reading, as many as the cores leave of
     * them: what memory and cores have for the two together. GPU: as alone. */
    double read_beside_bytes_per_second, copy_beside_bytes_per_second;
    /* What kernels take for one token. Weights that products of one row go through in a second, all
     * threads, from memory. Attention, by how KV is kept: so much for each byte, so much for each
     * product of a query's channel with a key's; beside that it must be read. GPU: they keep up
     * with memory. */
    double bf16_weights_per_second, f32_weights_per_second; /* bytes */
    struct {
        double byte_seconds, product_seconds;
    } attention[SPW_KV_PRECISIONS];
    /* A slot of a ring, but for the drive's part and for what there is to compute: from the host's
     * learning that it has landed until the drive is asked for the next one, by way of threads that
     * sleep; and what all threads take of the cores for that. */
    double handover_seconds, handover_core_seconds;
    /* Matrix peak: CPU, register-resident, all threads; GPU, cuBLASLt on 8192 x 8192 (0: the
     * library was not found, and `note` says so). */
    double bf16_flops, f32_flops;
    int64_t measured_at; /* seconds since 1970 */
    char note[320];
};

/* Of the device that `o` would compute on (backend, device_index, threads). */
int spw_machine_probe(struct spw_machine *out, const struct spw_options *o, struct spw_error *err);
/* By way of a profile (NULL: nothing is kept). A file that cannot be used is no failure: out->note
 * says so. */
int spw_machine_recall(struct spw_machine *out, const struct spw_options *o, const char *profile,
                       enum spw_probe_mode mode, struct spw_error *err);

/* What this machine is made of, what of it this process may use, and where the threads of a run
 * with these options (backend, device_index, threads, disk_dir) would be. The caller frees `out`
 * with spw_topology_info_free. */
int spw_machine_topology(struct spw_topology_info *out, const struct spw_options *o,
                         struct spw_error *err);

/* ---- the drive, measured once and kept ---- */

/* The drive behind a directory, as the disk tier uses it: records of request_bytes with checksums,
 * O_DIRECT where it is allowed. */
struct spw_drive {
    char device[192];    /* model and serial number; without them its number, name and size */
    char filesystem[32]; /* "ext4" */
    enum spw_io_kind io; /* as asked for */
    char engine[128];    /* what was taken: spw_io_describe */
    bool direct;         /* false: buffered, the page cache is part of what was measured */
    uint64_t request_bytes;
    uint32_t queue_depth;                                 /* bandwidth x latency, from 8 to 64 */
    double read_bytes_per_second, write_bytes_per_second; /* with that many requests in flight */
    double latency_seconds;                               /* of one request alone */
    double cpu_seconds_per_byte; /* of the I/O threads, reading, checksums included */
    /* The same of small requests, for rings whose slots are smaller than request_bytes. */
    uint64_t small_request_bytes;
    double small_read_bytes_per_second, small_latency_seconds, small_cpu_seconds_per_byte;
    int64_t measured_at; /* seconds since 1970 */
    /* Not kept: */
    uint64_t written_bytes; /* that measuring cost now; 0: known from the profile */
    char note[320];         /* what the user should know: a profile that was unusable; "" */
};

struct spw_drive_options {
    const char *directory;
    const char *profile; /* NULL: nothing is kept */
    enum spw_probe_mode mode;
    enum spw_io_kind io;
    uint64_t write_limit_bytes; /* most that measuring may write; 0: 256 MiB */
};

/* The profile's numbers, or new ones: about a second, at most 256 MiB written to an anonymous file
 * in the directory. A profile that is corrupt is measured again and replaced. -ENOENT, -ENOTDIR,
 * -EACCES, -EROFS, -ENOSPC, -EDQUOT (the limit is under 8 MiB): the directory cannot be used. */
int spw_drive_probe(struct spw_drive *out, const struct spw_drive_options *o,
                    struct spw_error *err);

/* ---- the gate: whether a model may be run with quantized KV, checked once and kept ---- */

enum { SPW_GATE_FORMATS = 3 };

/* A calibration text with old KV in one format beside the same text with all KV exact. Divergences
 * are Kullback-Leibler, in nats, of the quantized next-token distribution from the exact one. */
struct spw_gate_result {
    enum spw_kv_precision precision; /* given by the caller */
    bool passes;
    bool known;           /* from the file, not measured now */
    uint64_t n_positions; /* that were compared: they read quantized tiles */
    uint64_t n_sure; /* of them, where exact KV gives one token twice the next one's probability */
    uint64_t
        n_sharpened; /* of them, where the distribution is so flat that it was sharpened first */
    double kl_median, kl_p999;  /* half of the positions, 99.9 % of them, are not above it */
    double same_top, same_sure; /* how often the likeliest token is the same; where sure */
    uint64_t bytes_per_token, exact_bytes_per_token; /* of KV, full-attention layers */
    int64_t measured_at;                             /* seconds since 1970 */
    char note[320]; /* why it does not pass; or that the result could not be kept */
};

struct spw_gate_options {
    const char *profile; /* the file in which results are kept; NULL: nothing is kept */
    enum spw_probe_mode mode;
};

/* Fills results[n], n at most SPW_GATE_FORMATS, whose `precision` is set, none of them EXACT. What
 * the file does not know is measured on engines of its own, within the budgets of `o` and before
 * the caller takes them for his: some seconds for a small model, a minute for 1 GB on few cores.
 * `o->precision` does not matter, of `o->residual_window` only whether there is one.
 * A format that does not pass is no failure. -ENODATA: not known, and mode is NEVER. -ENOMEM: two
 * engines do not fit side by side. Else as spw_engine_open and spw_sync. */
int spw_gate_check(struct spw_gate_result *results, size_t n, const char *model_dir,
                   const struct spw_options *o, const struct spw_gate_options *g,
                   struct spw_error *err);

/* ---- the I/O path alone: the disk tier's file, written and read in order, with checksums ---- */

struct spw_drive_bench_options {
    const char *directory;
    enum spw_io_kind io;
    uint32_t queue_depth;         /* requests in flight; 0: 16 */
    uint64_t tile_bytes;          /* a multiple of 4096 */
    uint32_t slot_tiles, n_slots; /* a slot is read or written as one job; n_slots at a time */
    uint64_t file_bytes;          /* preallocated, before anything is timed */
};

struct spw_drive_pass_options {
    bool write;
    uint32_t slots;      /* in flight; 0: n_slots */
    uint32_t slot_tiles; /* of each, at most as the file was opened with; 0: so many */
    /* Stops after so long; reading goes round and round until then. 0: the whole file once; of a
     * file that was not written whole, what was. */
    double seconds;
};

struct spw_drive_pass {
    uint64_t bytes;
    double seconds, cpu_seconds; /* cpu: of the I/O threads */
};

struct spw_drive_bench;
int spw_drive_bench_open(struct spw_drive_bench **out, const struct spw_drive_bench_options *o,
                         struct spw_error *err);
void spw_drive_bench_close(struct spw_drive_bench *b);
/* What is read must have been written. */
int spw_drive_bench_pass(struct spw_drive_bench *b, const struct spw_drive_pass_options *p,
                         struct spw_drive_pass *out, struct spw_error *err);
const char *spw_drive_bench_engine(const struct spw_drive_bench *b);
/* "O_DIRECT, 4096-byte blocks, ext4"; `fd` for others that are to read the same file. */
const char *spw_drive_bench_file(const struct spw_drive_bench *b, int *fd, bool *direct);

/* ---- what a plan must take on this machine, from bytes and measured limits ---- */

enum spw_bound { SPW_BOUND_COMPUTE, SPW_BOUND_LINK, SPW_BOUND_DISK };

struct spw_prediction {
    double compute_seconds, link_seconds, disk_seconds; /* each alone; on the CPU computation has
                                                           what copies and I/O take of its cores */
    double seconds;                                     /* the longest of them: they overlap */
    enum spw_bound bound;                               /* which one that is */
};

/* One decode step at the full context. Pure. `d`: NULL without a disk. */
void spw_predict_step(struct spw_prediction *out, const struct spw_plan_info *p,
                      const struct spw_machine *m, const struct spw_drive *d);
/* A prompt of the full context that takes `flops` multiplications and additions: a lower bound, for
 * no kernel reaches the matrix peak. */
void spw_predict_prompt(struct spw_prediction *out, const struct spw_plan_info *p, double flops,
                        const struct spw_machine *m, const struct spw_drive *d);
/* "computation", "host link", "disk" */
const char *spw_bound_name(enum spw_bound bound);

/* One decode step's attention alone, over a cache of `context` tokens in device memory. */
struct spw_attention_shape {
    uint32_t n_heads, n_kv_heads, head_dim;
    enum spw_dtype dtype;    /* of activations and cache */
    uint32_t k_bits, v_bits; /* of quantized tiles: 8 and 8, 8 and 4, 4 and 4; 0: exact ones */
    uint64_t context;
};
struct spw_attention_speed {
    uint64_t kv_bytes; /* that a step reads */
    double seconds;    /* a step, the median of several */
};
int spw_machine_attention(struct spw_attention_speed *out, const struct spw_attention_shape *shape,
                          const struct spw_options *o, struct spw_error *err);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif

#endif
