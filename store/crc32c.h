/* crc32c.h - CRC-32C (Castagnoli; RFC 3720 appendix B.4), the check of chunk headers and log records. It finds damage, not malice. */
#ifndef QR_CRC32C_H
#define QR_CRC32C_H

#include "base/base.h"

/* The check of `count` bytes that follow bytes whose check is `before` (0 for the first). Pure; of "123456789": 0xe3069283. */
uint32_t qr_crc32c(uint32_t before, const void *bytes, size_t count);

#endif
