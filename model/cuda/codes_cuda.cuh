/* Blocks of the quantized types on the GPU: quant/blocks.h has the meaning, this file reads the
 * same integers, four at a time. A block may lie in shared or in global memory.
 *
 * Numbers are read by parts of 32. Lane t of four gets two words of a part: the codes of numbers
 * 4t .. 4t+3 and 16+4t .. 16+4t+3, the operands of spw_mma_s8. In most formats the second four lie
 * in the same bytes as other numbers that the same lane needs, so few words are read twice. */
#ifndef SPW_MODEL_CUDA_CODES_CUDA_CUH
#define SPW_MODEL_CUDA_CODES_CUDA_CUH

#include "quant/codes.h"
#include "quant/cuda.cuh"

/* What kernels know of a type when they are compiled. */
template <enum spw_dtype type> struct packed_type {
    static const bool large = type == SPW_DTYPE_Q2_K || type == SPW_DTYPE_Q3_K ||
                              type == SPW_DTYPE_Q4_K || type == SPW_DTYPE_Q5_K ||
                              type == SPW_DTYPE_Q6_K || type == SPW_DTYPE_IQ4_XS;
    static const bool has_minima = type == SPW_DTYPE_Q4_1 || type == SPW_DTYPE_Q5_1 ||
                                   type == SPW_DTYPE_Q2_K || type == SPW_DTYPE_Q4_K ||
                                   type == SPW_DTYPE_Q5_K;
    /* A large block has a scale for 16 numbers, or for 32. */
    static const bool parts_of_16 =
        type == SPW_DTYPE_Q2_K || type == SPW_DTYPE_Q3_K || type == SPW_DTYPE_Q6_K;
    static const int elements = large ? 256 : 32;
    static const int bytes = type == SPW_DTYPE_Q8_0     ? 34
                             : type == SPW_DTYPE_Q4_1   ? 20
                             : type == SPW_DTYPE_Q5_0   ? 22
                             : type == SPW_DTYPE_Q5_1   ? 24
                             : type == SPW_DTYPE_Q2_K   ? 84
                             : type == SPW_DTYPE_Q3_K   ? 110
                             : type == SPW_DTYPE_Q4_K   ? 144
                             : type == SPW_DTYPE_Q5_K   ? 176
                             : type == SPW_DTYPE_Q6_K   ? 210
                             : type == SPW_DTYPE_IQ4_XS ? 136
                             : type == SPW_DTYPE_MXFP4  ? 17
                                                        : 18;
    static const int align = bytes & -bytes; /* of a block that follows an aligned one */
    static const int group_bytes = SPW_CODES_GROUP / elements * bytes;
};

/* Four bytes at an address that is a multiple of `align`, or not at all known to be one. */
template <int align> static __device__ __forceinline__ uint32_t word_at(const uint8_t *p)
{
    if constexpr (align >= 4) {
        return *(const uint32_t *)p;
    } else if constexpr (align == 2) {
        const uint16_t *two = (const uint16_t *)p;
        return two[0] | (uint32_t)two[1] << 16;
    } else {
        return p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
    }
}

static __device__ __forceinline__ float f16_at(const uint8_t *p)
{
    return spw_device_f16(*(const uint16_t *)p);
}

static __device__ __forceinline__ uint32_t low_nibbles(uint32_t x)
{
    return x & 0x0f0f0f0fu;
}

static __device__ __forceinline__ uint32_t high_nibbles(uint32_t x)
{
    return x >> 4 & 0x0f0f0f0fu;
}

/* `offset` less in each of four bytes that are below 128. The sum stays in its byte, and the sign
 * bit is then the inverted bit 7. */
template <int offset> static __device__ __forceinline__ uint32_t less(uint32_t x)
{
    return (x + 0x01010101u * (128 - offset)) ^ 0x80808080u;
}

/* Bits i .. i + 3 of x become bit 4 of four bytes. */
static __device__ __forceinline__ uint32_t fifth_bits(uint32_t x, int i)
{
    return ((x >> i & 15u) * 0x02040810u) & 0x10101010u;
}

/* The table's bytes at the eight half-bytes of q: out[0] has those at the low ones. `a` .. `d` are
 * sixteen bytes. __byte_perm takes eight of them, by three bits of a half-byte; the fourth bit
 * takes one of two results. */
static __device__ __forceinline__ void look_up(uint32_t a, uint32_t b, uint32_t c, uint32_t d,
                                               uint32_t q, uint32_t out[2])
{
    const uint32_t index = q & 0x77777777u, upper = 0x32103210u | (q & 0x88888888u) >> 1;
    const uint32_t front = __byte_perm(__byte_perm(a, b, index), __byte_perm(c, d, index), upper);
    const uint32_t back =
        __byte_perm(__byte_perm(a, b, index >> 16), __byte_perm(c, d, index >> 16), upper >> 16);
    out[0] = __byte_perm(front, back, 0x6420);
    out[1] = __byte_perm(front, back, 0x7531);
}

static __device__ __forceinline__ void look_up_iq4(uint32_t q, uint32_t out[2])
{
    look_up(0xbfad9881u, 0xf6eaddcfu, 0x26190d01u, 0x71594535u, q, out);
}

static __device__ __forceinline__ void look_up_mxfp4(uint32_t q, uint32_t out[2])
{
    look_up(0x03020100u, 0x0c080604u, 0xfdfeff00u, 0xf4f8fafcu, q, out);
}

/* The codes of lane t of part `part` of a block. */
template <enum spw_dtype type>
static __device__ __forceinline__ void unpack_codes(const uint8_t *block, int part, int t,
                                                    uint32_t out[2])
{
    static const int align = packed_type<type>::align;
    if constexpr (type == SPW_DTYPE_Q8_0) {
        out[0] = word_at<align>(block + 2 + 4 * t);
        out[1] = word_at<align>(block + 18 + 4 * t);
    } else if constexpr (type == SPW_DTYPE_Q4_0) {
        const uint32_t q = word_at<align>(block + 2 + 4 * t);
        out[0] = less<8>(low_nibbles(q));
        out[1] = less<8>(high_nibbles(q));
    } else if constexpr (type == SPW_DTYPE_Q4_1) {
        const uint32_t q = word_at<align>(block + 4 + 4 * t);
        out[0] = low_nibbles(q);
        out[1] = high_nibbles(q);
    } else if constexpr (type == SPW_DTYPE_Q5_0) {
        const uint32_t q = word_at<align>(block + 6 + 4 * t), h = word_at<align>(block + 2);
        out[0] = less<16>(low_nibbles(q) | fifth_bits(h, 4 * t));
        out[1] = less<16>(high_nibbles(q) | fifth_bits(h, 16 + 4 * t));
    } else if constexpr (type == SPW_DTYPE_Q5_1) {
        const uint32_t q = word_at<align>(block + 8 + 4 * t), h = word_at<align>(block + 4);
        out[0] = low_nibbles(q) | fifth_bits(h, 4 * t);
        out[1] = high_nibbles(q) | fifth_bits(h, 16 + 4 * t);
    } else if constexpr (type == SPW_DTYPE_IQ4_NL) {
        look_up_iq4(word_at<align>(block + 2 + 4 * t), out);
    } else if constexpr (type == SPW_DTYPE_MXFP4) {
        look_up_mxfp4(word_at<align>(block + 1 + 4 * t), out);
    } else if constexpr (type == SPW_DTYPE_IQ4_XS) {
        look_up_iq4(word_at<align>(block + 8 + 16 * part + 4 * t), out);
    } else {
        for (int i = 0; i < 2; i++) {
            const int place = 16 * i + 4 * t; /* of the first number in the part */
            if constexpr (type == SPW_DTYPE_Q2_K) {
                const uint32_t q = word_at<align>(block + 16 + part / 4 * 32 + place);
                out[i] = q >> part % 4 * 2 & 0x03030303u;
            } else if constexpr (type == SPW_DTYPE_Q3_K) {
                const uint32_t q = word_at<align>(block + 32 + part / 4 * 32 + place);
                const uint32_t h = word_at<align>(block + place);
                out[i] =
                    less<4>((q >> part % 4 * 2 & 0x03030303u) | (h >> part & 0x01010101u) << 2);
            } else if constexpr (type == SPW_DTYPE_Q6_K) {
                const uint32_t q = word_at<align>(block + part / 4 * 64 + part % 2 * 32 + place) >>
                                   part % 4 / 2 * 4;
                const uint32_t h = word_at<align>(block + 128 + part / 4 * 32 + place);
                out[i] = less<32>(low_nibbles(q) | (h >> part % 4 * 2 & 0x03030303u) << 4);
            } else { /* Q4_K, Q5_K */
                const int q_at = type == SPW_DTYPE_Q4_K ? 16 : 48;
                const uint32_t q = word_at<align>(block + q_at + part / 2 * 32 + place);
                out[i] = low_nibbles(q >> part % 2 * 4);
                if constexpr (type == SPW_DTYPE_Q5_K)
                    out[i] |= (word_at<align>(block + 16 + place) >> part & 0x01010101u) << 4;
            }
        }
    }
}

/* d and m of a block; m is -0 in a type without minima. */
template <enum spw_dtype type>
static __device__ __forceinline__ void unpack_factors(const uint8_t *block, float *d, float *m)
{
    *m = -0.0f;
    if constexpr (type == SPW_DTYPE_MXFP4) {
        const uint32_t e = block[0]; /* 2^(e - 128): below 2 a subnormal number */
        *d = __uint_as_float(e < 2 ? 0x200000u << e : (e - 1) << 23);
    } else if constexpr (type == SPW_DTYPE_Q2_K) {
        *d = f16_at(block + 80);
        *m = -f16_at(block + 82);
    } else if constexpr (type == SPW_DTYPE_Q3_K) {
        *d = f16_at(block + 108);
    } else if constexpr (type == SPW_DTYPE_Q6_K) {
        *d = f16_at(block + 208);
    } else {
        *d = f16_at(block);
        if constexpr (type == SPW_DTYPE_Q4_1 || type == SPW_DTYPE_Q5_1)
            *m = f16_at(block + 2);
        if constexpr (type == SPW_DTYPE_Q4_K || type == SPW_DTYPE_Q5_K)
            *m = -f16_at(block + 2);
    }
}

/* Four scales of a large block as bytes: of parts 4 i .. 4 i + 3, which have 16 numbers or 32. */
template <enum spw_dtype type>
static __device__ __forceinline__ uint32_t unpack_scales(const uint8_t *block, int i)
{
    static const int align = packed_type<type>::align;
    if constexpr (type == SPW_DTYPE_Q2_K) {
        return low_nibbles(word_at<align>(block + 4 * i));
    } else if constexpr (type == SPW_DTYPE_Q3_K) {
        const uint32_t low = word_at<align>(block + 96 + i % 2 * 4) >> i / 2 * 4;
        const uint32_t high = word_at<align>(block + 104) >> 2 * i;
        return less<32>(low_nibbles(low) | (high & 0x03030303u) << 4);
    } else if constexpr (type == SPW_DTYPE_Q6_K) {
        return word_at<align>(block + 192 + 4 * i);
    } else if constexpr (type == SPW_DTYPE_IQ4_XS) {
        const uint32_t low = word_at<2>(block + 4 + 2 * i), high = block[2 + i];
        /* Half-bytes, and pairs of bits, become bytes. */
        const uint32_t four =
            (low & 0x000fu) | (low & 0x00f0u) << 4 | (low & 0x0f00u) << 8 | (low & 0xf000u) << 12;
        const uint32_t two =
            (high & 3u) | (high & 12u) << 6 | (high & 48u) << 12 | (high & 192u) << 18;
        return less<32>(four | two << 4);
    } else { /* Q4_K, Q5_K */
        const uint32_t first = word_at<align>(block + 4);
        if (i == 0)
            return first & 0x3f3f3f3fu;
        return low_nibbles(word_at<align>(block + 12)) | (first >> 2 & 0x30303030u);
    }
}

/* The same for minima, of a large type that has some. */
template <enum spw_dtype type>
static __device__ __forceinline__ uint32_t unpack_minima(const uint8_t *block, int i)
{
    static const int align = packed_type<type>::align;
    if constexpr (type == SPW_DTYPE_Q2_K)
        return high_nibbles(word_at<align>(block + 4 * i));
    const uint32_t first = word_at<align>(block + 8);
    if (i == 0)
        return first & 0x3f3f3f3fu;
    return high_nibbles(word_at<align>(block + 12)) | (first >> 2 & 0x30303030u);
}

/* Byte i of a word, with its sign. */
static __device__ __forceinline__ int byte_of(uint32_t x, int i)
{
    return (int)(x << (24 - 8 * i)) >> 24;
}

#endif
