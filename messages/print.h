/* print.h - a message as one line, by the schema: what tap, traces and failing tests show.
 *   offer 1.0.router.0 > 2.0.worker.0 request_id=7 attempt=1 tokens[12]=5,9,11,... seed=3
 * Fields that are zero or empty and optional are left out; `reason`, `error` and `statuses` show names, `*_bits` hexadecimal. */
#ifndef QR_PRINT_H
#define QR_PRINT_H

#include "base/text.h"
#include "messages/message.h"

/* node.device.role.instance */
void qr_print_address(qr_text_t *text, uint64_t address);
/* The line, without a newline. A type that the schema does not have prints as "type 99". */
void qr_print_message(qr_text_t *text, const qr_message_t *message);

#endif
