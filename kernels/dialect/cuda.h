/* cuda.h - the words of the portable dialect in CUDA. Built with -fmad=false: fma only where qr_fma says so. */
#include <cuda_fp16.h>
typedef unsigned char qr_u8;
typedef signed char qr_i8;
typedef unsigned short qr_u16;
typedef unsigned int qr_u32;
typedef int qr_i32;
typedef unsigned long long qr_u64;
typedef long long qr_i64;
typedef __half qr_half;
#define QR_ENTRY(name) extern "C" __global__ void qr_##name
#define QR_GLOBAL
#define QR_INDEX ((qr_u64)blockIdx.x * blockDim.x + threadIdx.x)
#define QR_INLINE static __device__ __forceinline__
#define qr_load_half(pointer, index) __half2float((pointer)[index])
#define qr_store_half(value, pointer, index) ((pointer)[index] = __float2half_rn(value))
#define qr_fma(a, b, c) __fmaf_rn((a), (b), (c))
#define qr_sqrt(a) __fsqrt_rn(a)
#define qr_rint(a) rintf(a)
#define qr_bits(value) __float_as_uint(value)
#define qr_float(bits) __uint_as_float(bits)
