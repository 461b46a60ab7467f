// tests/support/given_table.h - tables of --attn=auto as files, with given times.
#ifndef SLEIGH_TEST_GIVEN_TABLE_H
#define SLEIGH_TEST_GIVEN_TABLE_H

// Writes a table of the embedded model on the CPU to the file `name` of the folder of the case. attn, points: the texts between
// the brackets of these fields. prefill: the text of its field, "": without it. Returns the path; up to four paths stay valid.
const char *given_table_spill(const char *name, const char *attn, const char *points, const char *prefill);

#endif
