/* facts_tool.h - `quire catalog`: a person's way into a store's catalog while no server holds it. */
#ifndef QR_IO_FACTS_TOOL_H
#define QR_IO_FACTS_TOOL_H

/* query | show | history | verify | rebuild. default_store: where to look without --store; may be empty. Returns the exit status: 0; 1:
 * damage was found (verify), or the catalog cannot be opened; 2: the words make no sense. */
int qr_facts_tool_main(int count, char **word, const char *default_store);

#endif
