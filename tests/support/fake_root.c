// tests/support/fake_root.c - see fake_root.h.
#include "tests/support/fake_root.h"
#include "tests/test.h"

#include <string.h>
#include <sys/stat.h>

void fake_root_put(const char *root, const char *path, const char *text) {
    char full[600];
    snprintf(full, sizeof full, "%s/%s/%s", test_tmp(), root, path);
    for (char *p = full + strlen(test_tmp()) + 1; (p = strchr(p, '/')); p++) {
        *p = 0;
        mkdir(full, 0777);
        *p = '/';
    }
    FILE *f = fopen(full, "w");
    CHECK(f && fputs(text, f) != EOF && !fclose(f));
}
