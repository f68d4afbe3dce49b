/* opencl.h - the words of the portable dialect in OpenCL C 1.2. Put before the sources when they are built. */
#pragma OPENCL FP_CONTRACT OFF
#pragma OPENCL EXTENSION cl_khr_fp64 : enable
typedef uchar qr_u8;
typedef char qr_i8;
typedef ushort qr_u16;
typedef uint qr_u32;
typedef int qr_i32;
typedef ulong qr_u64;
typedef long qr_i64;
typedef half qr_half;
#define QR_ENTRY(name) __kernel void qr_##name
#define QR_GLOBAL __global
#define QR_INDEX ((qr_u64)get_global_id(0))
#define QR_INLINE static inline
#define qr_load_half(pointer, index) vload_half((index), (pointer))
#define qr_store_half(value, pointer, index) vstore_half_rte((value), (index), (pointer))
#define qr_fma(a, b, c) fma((a), (b), (c))
#define qr_sqrt(a) sqrt(a)
#define qr_rint(a) rint(a)
#define qr_bits(value) as_uint(value)
#define qr_float(bits) as_float(bits)
