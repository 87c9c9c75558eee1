/* Measuring: the limits of this machine and of a drive, whether a model works with quantized KV,
 * the least time that a plan takes. Part of the public API. An engine works without these numbers,
 * and they never change a result. */
#ifndef SPW_RUNTIME_MEASURE_H
#define SPW_RUNTIME_MEASURE_H

#include "runtime/plan_query.h"
#include "runtime/spillway.h"
#include "offload/device/topology_info.h"

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

/* ---- the machine's own limits, measured now (a second) ----
 *
 * Each figure is measured in several rounds. The median round is typical: it tells how long work
 * probably takes. The fastest round is the best that the machine can do: no work should be faster.
 * At best, products of many rows are those of a CPU's registers. */

/* A profile is a file with measured numbers. */
enum spw_probe_mode {
    SPW_PROBE_UNKNOWN, /* measure what the profile does not have */
    SPW_PROBE_AGAIN,   /* measure in any case */
    SPW_PROBE_NEVER,   /* never measure: -ENODATA for what the profile does not have */
};

/* What a product multiplies. */
enum spw_product {
    SPW_PRODUCT_F32,      /* rows and weights in f32 (or 16 bits, widened) */
    SPW_PRODUCT_BF16,     /* both in bf16 */
    SPW_PRODUCT_INT8,     /* int8 activations and quantized weights */
    SPW_PRODUCT_UNPACKED, /* rows in f32 and quantized weights, which are taken apart */
    SPW_PRODUCTS,
};
enum spw_product spw_product_of(enum spw_dtype compute, bool quantized, bool int8_activations);
/* "f32", "bf16", "int8", "f32_quantized" */
const char *spw_product_name(enum spw_product product);

struct spw_machine {
    char cpu[128], isa[32], gpu[80]; /* gpu: "" where the CPU computes */
    uint32_t threads, cores;         /* cores: those that this process may use, for any `threads` */
    double read_bytes_per_second;    /* the device reads its memory, a CPU with all threads */
    double copy_bytes_per_second;    /* host to device, as a copy of a ring: 64 MiB */
    /* Multiplications and additions a second in products with one row, whose weights come from
     * memory, and with many rows. A GPU has only many_flops of f32 and bf16, from cuBLASLt on 8192
     * x 8192; others are 0: not measured. (Without the library these are 0, too, and `note` says
     * so.)
     */
    double few_flops[SPW_PRODUCTS], many_flops[SPW_PRODUCTS];
    int64_t measured_at; /* seconds since 1970 */
    char note[320];
};

/* The same machine by the median rounds, and by the fastest. */
struct spw_machine_range {
    struct spw_machine typical, best;
    /* Best over typical of the speed that changed most while they were measured. Above 3 other
     * programs run, and a profile does not get the numbers. 0: they are from the profile. */
    double spread;
    char unstored[320]; /* why the numbers were not stored; or "" */
};

/* many_flops of this product; where it was not measured, that of the type without quantization. */
double spw_machine_many_flops(const struct spw_machine *m, enum spw_product product);

/* Measures the device that `o` names (backend, device_index, threads). -ECANCELED: o->interrupt was
 * raised, and stays raised for the next step; a GPU is always measured to the end. */
int spw_machine_probe(struct spw_machine_range *out, const struct spw_options *o,
                      struct spw_error *err);
/* The same with a profile (NULL: none), which stores the numbers. A profile that cannot be used is
 * no failure: out->typical.note says so. Nor is a profile that cannot be written. */
int spw_machine_recall(struct spw_machine_range *out, const struct spw_options *o,
                       const char *profile, enum spw_probe_mode mode, struct spw_error *err);

/* The processors, memory, drives and GPUs of this machine, which of them this process may use, and
 * where the threads of a run with these options (backend, device_index, threads, disk_dir) would
 * run. The caller frees `out` with spw_topology_info_free. */
int spw_machine_topology(struct spw_topology_info *out, const struct spw_options *o,
                         struct spw_error *err);

/* ---- the drive: measured once, then stored ---- */

/* The drive behind a directory, as the disk tier uses it: records of request_bytes with checksums,
 * O_DIRECT where it is allowed. */
struct spw_drive {
    char device[192];    /* model and serial number; without them its number, name and size */
    char filesystem[32]; /* "ext4" */
    enum spw_io_kind io; /* as in the options */
    char engine[128];    /* what read and wrote, as spw_engine_io says it */
    bool direct;         /* false: through the page cache, which is part of the numbers */
    uint64_t request_bytes;
    uint32_t queue_depth; /* requests in flight: bandwidth times latency, from 8 to 64 */
    double read_bytes_per_second, write_bytes_per_second; /* with that many requests in flight */
    double latency_seconds;                               /* of a single request */
    /* The same for small requests: rings may have slots smaller than request_bytes. */
    uint64_t small_request_bytes;
    double small_read_bytes_per_second;
    int64_t measured_at; /* seconds since 1970 */
    /* Not part of the profile: */
    uint64_t written_bytes; /* by this measuring; 0: the numbers are from the profile */
    char note[320];         /* that the profile could not be used; or "" */
    char unstored[320];     /* why the profile could not be written; or "" */
};

struct spw_drive_options {
    const char *directory;
    const char *profile; /* NULL: none */
    enum spw_probe_mode mode;
    enum spw_io_kind io;
    uint64_t write_limit_bytes; /* the most bytes that measuring may write; 0: 128 MiB */
};

/* The numbers of the profile, or new ones. Measuring takes about a second and writes to an
 * anonymous file in the directory. A damaged profile is replaced. -ENOENT, -ENOTDIR, -EACCES,
 * -EROFS, -ENOSPC, -EDQUOT (the limit is under 8 MiB): the directory cannot be used. */
int spw_drive_probe(struct spw_drive *out, const struct spw_drive_options *o,
                    struct spw_error *err);

/* ---- the gate: whether a model works with quantized KV; checked once, then stored ---- */

enum { SPW_GATE_FORMATS = 3 };

/* The result for one format: the same text with old KV in this format, and with all KV exact.
 * Divergences are Kullback-Leibler, in nats, of the next-token distribution with quantized KV from
 * the exact distribution. */
struct spw_gate_result {
    enum spw_kv_precision precision; /* given by the caller */
    bool passes;
    bool known;           /* the result is from the profile, not measured now */
    uint64_t n_positions; /* positions that were compared: they read quantized tiles */
    uint64_t n_sure;      /* of these: exact KV gives one token twice the probability of the next */
    uint64_t n_sharpened; /* of these: the distribution is so flat that it was sharpened first */
    double kl_median, kl_p999; /* half of the positions, 99.9 % of them, are not above it */
    double same_top,
        same_sure; /* the share of positions with the same likeliest token; of n_sure */
    uint64_t bytes_per_token, exact_bytes_per_token; /* of KV, full-attention layers */
    int64_t measured_at;                             /* seconds since 1970 */
    char note[320];                                  /* why the format does not pass; or "" */
    char unstored[320]; /* why the profile could not be written; or "" */
};

struct spw_gate_options {
    const char *profile; /* the file with results; NULL: none */
    enum spw_probe_mode mode;
};

/* Fills in results[n]: the caller sets `precision` of each, none of them EXACT; n is at most
 * SPW_GATE_FORMATS. Measures results that the profile does not have, on two engines within the
 * budgets of `o`: some seconds for a small model, a minute for 1 GB on few cores. `o->precision`
 * does not matter, and of `o->residual_window` only whether it is SPW_NONE. A format that
 * does not pass is no failure. -ENODATA: the profile does not have a result, and mode is NEVER.
 * -ENOMEM: two engines do not fit. Other errors are those of spw_engine_open and spw_sync. */
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
    uint64_t file_bytes;          /* allocated before anything is timed */
};

struct spw_drive_pass_options {
    bool write;
    uint32_t slots;      /* in flight; 0: n_slots */
    uint32_t slot_tiles; /* of each slot, at most that of spw_drive_bench_open; 0: the same */
    /* The pass ends after this time; until then it reads the file again and again. 0: once through
     * the file, as far as it was written. */
    double seconds;
};

struct spw_drive_pass {
    uint64_t bytes;
    double seconds;
};

struct spw_drive_bench;
int spw_drive_bench_open(struct spw_drive_bench **out, const struct spw_drive_bench_options *o,
                         struct spw_error *err);
void spw_drive_bench_close(struct spw_drive_bench *b);
/* A read pass needs a write pass before it. */
int spw_drive_bench_pass(struct spw_drive_bench *b, const struct spw_drive_pass_options *p,
                         struct spw_drive_pass *out, struct spw_error *err);
const char *spw_drive_bench_engine(const struct spw_drive_bench *b);
/* "O_DIRECT, 4096-byte blocks, ext4"; `fd`: for others that read the same file. */
const char *spw_drive_bench_file(const struct spw_drive_bench *b, int *fd, bool *direct);

/* ---- the time that a plan takes on this machine, from bytes and measured limits ----
 *
 * With the typical figures of the machine: an estimate, which may be wrong by 30 %, and by more for
 * models whose tokens take less than some milliseconds. With its best figures: the least time. */

enum spw_bound { SPW_BOUND_COMPUTE, SPW_BOUND_LINK, SPW_BOUND_DISK };

struct spw_prediction {
    /* The time of each alone; on the CPU, compute_seconds includes the time that copies take from
     * its cores. */
    double compute_seconds, link_seconds, disk_seconds;
    double seconds;       /* the longest of them: they overlap */
    enum spw_bound bound; /* which of them is the longest */
};

/* One decode step at the full context. Pure. `d`: NULL without a disk. */
void spw_predict_step(struct spw_prediction *out, const struct spw_plan_info *p,
                      const struct spw_machine *m, const struct spw_drive *d);
/* A prompt: its tokens, and its multiplications and additions: products with weights, and attention
 * (4 for each channel of a head and pair of a query and a key). */
struct spw_prompt_work {
    double product_flops, attention_flops, tokens;
};
/* A prompt of the full context with this work. */
void spw_predict_prompt(struct spw_prediction *out, const struct spw_plan_info *p,
                        const struct spw_prompt_work *work, const struct spw_machine *m,
                        const struct spw_drive *d);
/* "computation", "host link", "disk" */
const char *spw_bound_name(enum spw_bound bound);

/* One decode step's attention alone, over a cache of `context` tokens in device memory. */
struct spw_attention_shape {
    uint32_t n_heads, n_kv_heads, head_dim;
    enum spw_dtype dtype;    /* of activations and cache */
    uint32_t k_bits, v_bits; /* of quantized tiles: 8 and 8, 8 and 4, 4 and 4; 0: exact tiles */
    uint64_t context;
};
struct spw_attention_speed {
    uint64_t kv_bytes; /* bytes that a step reads */
    double seconds;    /* of a step; the fastest of several batches of steps */
};
int spw_machine_attention(struct spw_attention_speed *out, const struct spw_attention_shape *shape,
                          const struct spw_options *o, struct spw_error *err);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif

#endif
