/* render.h - how the text of a prompt is written where it is kept and compared (text_encoded.rendered, a saved continuation): what the
 * model's template wrote, with every content between two bytes that no UTF-8 text holds, so that what a message says is never taken for
 * what the template wrote. A plain text is one content. What was saved ends inside a content, behind the answer. */
#ifndef QR_RENDER_H
#define QR_RENDER_H

#include "base/limits.h"

enum {
    QR_RENDER_CONTENT = 0xFE,
    QR_RENDER_CONTENT_END = 0xFF,
    QR_RENDER_BYTES_MAX = QR_TEXT_BYTES_MAX + (256 << 10) /* that is kept: a request's text, what a template writes around it, an answer */
};

#endif
