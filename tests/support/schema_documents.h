// tests/support/schema_documents.h - a JSON schema, and a check of the documents that follow it.
#ifndef SLEIGH_TEST_SCHEMA_DOCUMENTS_H
#define SLEIGH_TEST_SCHEMA_DOCUMENTS_H

extern const char document_schema[]; // as JSON
void check_document(const char *text);

#endif
