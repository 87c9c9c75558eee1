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
#include "quant/type_facts.h"

/* What kernels know of a type when they are compiled: the members of quant/type_facts.h that they
 * use, as constants. */
template <enum spw_dtype type> struct packed_type {
    static const bool large = SPW_FACTS(type).elements == SPW_BLOCK_ELEMENTS;
    static const bool has_minima = SPW_FACTS(type).has_minima;
    static const bool parts_of_16 = SPW_FACTS(type).part == 16;
    static const int elements = SPW_FACTS(type).elements;
    static const int bytes = SPW_FACTS(type).bytes;
    static const int align = bytes & -bytes; /* of a block that follows an aligned one */
    static const int group_bytes = SPW_CODES_GROUP / elements * bytes;
    static const int low_bits = SPW_FACTS(type).low_bits, low_at = SPW_FACTS(type).low_at;
    static const int run = SPW_FACTS(type).run;
    static const int high_bits = SPW_FACTS(type).high_bits, high_at = SPW_FACTS(type).high_at;
    static const int offset = SPW_FACTS(type).offset;
    static const int d_at = SPW_FACTS(type).d_at, scales_at = SPW_FACTS(type).scales_at;
    static const enum spw_values values = SPW_FACTS(type).values;
    static const enum spw_scales form = SPW_FACTS(type).form;
    static const bool scales_codes = form == SPW_SCALES_4; /* the products fit a byte */
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
    if constexpr (offset == 0)
        return x;
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

#define SPW_BYTE(x) (uint8_t)(x)
constexpr static uint8_t iq4_values[16] = {SPW_IQ4_VALUES(SPW_BYTE)};
constexpr static uint8_t e2m1_values[16] = {SPW_E2M1_VALUES(SPW_BYTE)};
#undef SPW_BYTE

constexpr static uint32_t word_of(const uint8_t *v)
{
    return v[0] | (uint32_t)v[1] << 8 | (uint32_t)v[2] << 16 | (uint32_t)v[3] << 24;
}

template <enum spw_values values> struct value_words {
    static const bool iq4 = values == SPW_VALUES_IQ4;
    static const uint32_t a = word_of(iq4 ? iq4_values : e2m1_values);
    static const uint32_t b = word_of((iq4 ? iq4_values : e2m1_values) + 4);
    static const uint32_t c = word_of((iq4 ? iq4_values : e2m1_values) + 8);
    static const uint32_t d = word_of((iq4 ? iq4_values : e2m1_values) + 12);
};

/* The codes of lane t of part `part` of a block. */
template <enum spw_dtype type>
static __device__ __forceinline__ void unpack_codes(const uint8_t *block, int part, int t,
                                                    uint32_t out[2])
{
    using packed = packed_type<type>;
    static const int align = packed::align, offset = packed::offset;
    const uint8_t *low = block + packed::low_at, *high = block + packed::high_at;
    if constexpr (packed::low_bits == 8) {
        out[0] = word_at<align>(low + 4 * t);
        out[1] = word_at<align>(low + 16 + 4 * t);
    } else if constexpr (packed::run == 16) { /* the halves of the same bytes */
        const uint32_t q = word_at<align>(low + (packed::large ? 16 * part : 0) + 4 * t);
        if constexpr (packed::values != SPW_VALUES_PLAIN) {
            using words = value_words<packed::values>;
            look_up(words::a, words::b, words::c, words::d, q, out);
        } else {
            const uint32_t h = packed::high_bits ? word_at<align>(high) : 0;
            out[0] = less<offset>(low_nibbles(q) | fifth_bits(h, 4 * t));
            out[1] = less<offset>(high_nibbles(q) | fifth_bits(h, 16 + 4 * t));
        }
    } else {
        for (int i = 0; i < 2; i++) {
            const int place = 16 * i + 4 * t; /* of the first number in the part */
            uint32_t x = 0, h = 0;
            if constexpr (packed::low_bits == 2) {
                x = word_at<align>(low + part / 4 * 32 + place);
                x = x >> part % 4 * 2 & 0x03030303u;
            } else { /* nibbles: a run has the low ones of its parts, then the high ones */
                static const int parts = packed::run / 32;
                x = word_at<align>(low + part / (2 * parts) * packed::run + part % parts * 32 +
                                   place);
                x = low_nibbles(x >> part % (2 * parts) / parts * 4);
            }
            if constexpr (packed::high_bits == 1)
                h = word_at<align>(high + place) >> part & 0x01010101u;
            if constexpr (packed::high_bits == 2)
                h = word_at<align>(high + part / 4 * 32 + place) >> part % 4 * 2 & 0x03030303u;
            out[i] = less<offset>(x | h << packed::low_bits);
        }
    }
}

/* d and m of a block; m is -0 in a type without minima. */
template <enum spw_dtype type>
static __device__ __forceinline__ void unpack_factors(const uint8_t *block, float *d, float *m)
{
    using packed = packed_type<type>;
    *m = -0.0f;
    if constexpr (packed::form == SPW_SCALE_POWER) {
        const uint32_t e = block[packed::d_at]; /* 2^(e - 128): below 2 a subnormal number */
        *d = __uint_as_float(e < 2 ? 0x200000u << e : (e - 1) << 23);
    } else {
        *d = f16_at(block + packed::d_at);
    }
    if constexpr (packed::has_minima)
        *m = packed::large ? -f16_at(block + packed::d_at + 2) : f16_at(block + packed::d_at + 2);
}

/* Four scales of a large block as bytes: of parts 4 i .. 4 i + 3, which have 16 numbers or 32. */
template <enum spw_dtype type>
static __device__ __forceinline__ uint32_t unpack_scales(const uint8_t *block, int i)
{
    using packed = packed_type<type>;
    static const int align = packed::align;
    const uint8_t *s = block + packed::scales_at;
    if constexpr (packed::form == SPW_SCALES_4) {
        return low_nibbles(word_at<align>(s + 4 * i));
    } else if constexpr (packed::form == SPW_SCALES_6) {
        const uint32_t low = word_at<align>(s + i % 2 * 4) >> i / 2 * 4;
        const uint32_t high = word_at<align>(s + 8) >> 2 * i;
        return less<32>(low_nibbles(low) | (high & 0x03030303u) << 4);
    } else if constexpr (packed::form == SPW_SCALES_8) {
        return word_at<align>(s + 4 * i);
    } else if constexpr (packed::form == SPW_SCALES_2_4) {
        const uint32_t low = word_at<2>(s + 2 + 2 * i), high = s[i];
        /* Half-bytes, and pairs of bits, become bytes. */
        const uint32_t four =
            (low & 0x000fu) | (low & 0x00f0u) << 4 | (low & 0x0f00u) << 8 | (low & 0xf000u) << 12;
        const uint32_t two =
            (high & 3u) | (high & 12u) << 6 | (high & 48u) << 12 | (high & 192u) << 18;
        return less<32>(four | two << 4);
    } else { /* SPW_SCALES_6_6 */
        const uint32_t first = word_at<align>(s);
        if (i == 0)
            return first & 0x3f3f3f3fu;
        return low_nibbles(word_at<align>(s + 8)) | (first >> 2 & 0x30303030u);
    }
}

/* The same for minima, of a large type that has some. */
template <enum spw_dtype type>
static __device__ __forceinline__ uint32_t unpack_minima(const uint8_t *block, int i)
{
    using packed = packed_type<type>;
    static const int align = packed::align;
    const uint8_t *s = block + packed::scales_at;
    if constexpr (packed::form == SPW_SCALES_4)
        return high_nibbles(word_at<align>(s + 4 * i));
    const uint32_t first = word_at<align>(s + 4);
    if (i == 0)
        return first & 0x3f3f3f3fu;
    return high_nibbles(word_at<align>(s + 8)) | (first >> 2 & 0x30303030u);
}

/* Byte i of a word, with its sign. */
static __device__ __forceinline__ int byte_of(uint32_t x, int i)
{
    return (int)(x << (24 - 8 * i)) >> 24;
}

#endif
